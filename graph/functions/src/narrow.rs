//! The formats of elements of eight bits or less that are stored, moved and converted, but not computed with.
//!
//! Invariants
//! 1. A number is rounded once, and decoding the result of an encoding and encoding it again gives the same bits.

/// An integer type of less than eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarrowInt {
    pub bits: u8,
    pub signed: bool,
}

impl NarrowInt {
    /// The number of this code.
    pub fn decode(self, code: u8) -> i8 {
        let unused = 8 - self.bits.clamp(1, 8);
        match self.signed {
            true => ((code << unused) as i8) >> unused,
            false => code as i8,
        }
    }
}

/// A narrow element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    Int(NarrowInt),
    Float(NarrowFloat),
}

impl Narrow {
    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            Narrow::Int(int) => int.bits.into(),
            Narrow::Float(float) => float.bits(),
        }
    }
}

/// A float format of eight bits or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NarrowFloat {
    F4E2M1,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
}

/// The direction in which `F8E8M0`, which has no mantissa, is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerRounding {
    Up,
    Down,
    Nearest,
}

/// How a conversion rounds and saturates, where several results are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NarrowRounding {
    /// Whether a number beyond the largest finite one becomes that one, instead of the format's infinity.
    pub saturate: bool,
    pub power: PowerRounding,
}

/// The values of a format that are no finite numbers.
#[derive(Clone, Copy, PartialEq)]
enum Specials {
    /// Neither infinities nor NaN.
    None,
    /// NaN where all bits of exponent and mantissa are one.
    LastIsNan,
    /// NaN in place of negative zero.
    NegativeZeroIsNan,
    /// Infinities and NaN in the highest exponent.
    Ieee,
}

/// A format with a sign.
struct Layout {
    mantissa: u32,
    bias: i32,
    specials: Specials,
    sign: u8,
    /// The bits of the largest number.
    largest: u8,
}

const fn layout(mantissa: u32, bias: i32, specials: Specials, largest: u8) -> Layout {
    Layout {
        mantissa,
        bias,
        specials,
        sign: match specials {
            Specials::None => 0x08,
            _ => 0x80,
        },
        largest,
    }
}

const E2M1: Layout = layout(1, 1, Specials::None, 0x07);
const E4M3FN: Layout = layout(3, 7, Specials::LastIsNan, 0x7e);
const E4M3FNUZ: Layout = layout(3, 8, Specials::NegativeZeroIsNan, 0x7f);
const E5M2: Layout = layout(2, 15, Specials::Ieee, 0x7b);
const E5M2FNUZ: Layout = layout(2, 16, Specials::NegativeZeroIsNan, 0x7f);

impl NarrowFloat {
    fn layout(self) -> Option<&'static Layout> {
        Some(match self {
            NarrowFloat::F4E2M1 => &E2M1,
            NarrowFloat::F8E4M3FN => &E4M3FN,
            NarrowFloat::F8E4M3FNUZ => &E4M3FNUZ,
            NarrowFloat::F8E5M2 => &E5M2,
            NarrowFloat::F8E5M2FNUZ => &E5M2FNUZ,
            NarrowFloat::F8E8M0 => return None,
        })
    }

    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            NarrowFloat::F4E2M1 => 4,
            _ => 8,
        }
    }

    /// The number of these bits, exactly.
    pub fn decode(self, code: u8) -> f32 {
        match self.layout() {
            Some(layout) => layout.decode(code),
            None => match code {
                0 => f32::from_bits(1 << 22),
                0xff => f32::NAN,
                _ => f32::from_bits(u32::from(code) << 23),
            },
        }
    }

    /// The bits of the number that is nearest to `x`, or for `F8E8M0` next to it as `how` says.
    pub fn encode(self, x: f32, how: NarrowRounding) -> u8 {
        match self.layout() {
            Some(layout) => layout.encode(x, how.saturate),
            None => power(x, how),
        }
    }
}

/// Two to the power `exponent`, which is between -126 and 127.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl Layout {
    fn decode(&self, code: u8) -> f32 {
        let magnitude = code & (self.sign - 1);
        let special = match self.specials {
            Specials::None => None,
            Specials::LastIsNan => (magnitude > self.largest).then_some(f32::NAN),
            Specials::NegativeZeroIsNan => (code == self.sign).then_some(f32::NAN),
            Specials::Ieee => match magnitude {
                m if m <= self.largest => None,
                m if m == self.largest + 1 => Some(f32::INFINITY),
                _ => Some(f32::NAN),
            },
        };
        let exponent = i32::from(magnitude >> self.mantissa);
        let fraction = f32::from(magnitude & ((1 << self.mantissa) - 1));
        let unit = power_of_two(exponent.max(1) - self.bias - self.mantissa as i32);
        let implicit = if exponent == 0 {
            0.
        } else {
            (1 << self.mantissa) as f32
        };
        let number = special.unwrap_or((implicit + fraction) * unit);
        match code & self.sign {
            0 => number,
            _ => -number,
        }
    }

    fn encode(&self, x: f32, saturate: bool) -> u8 {
        let sign = if x.is_sign_negative() { self.sign } else { 0 };
        if x.is_nan() {
            return match self.specials {
                // The result is a zero of the other sign, as in ml_dtypes.
                Specials::None => sign ^ self.sign,
                Specials::LastIsNan => sign | (self.largest + 1),
                Specials::NegativeZeroIsNan => self.sign,
                Specials::Ieee => sign | (self.largest + 3),
            };
        }
        let magnitude = x.abs();
        let least = 1 - self.bias;
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(least);
        // A power of two scales exactly, and the result is below 2^24 except for an infinity, which overflows below.
        let units =
            (magnitude * power_of_two(self.mantissa as i32 - exponent.min(100))).round_ties_even();
        let units = units.min(1e6) as u32;
        let code = (((exponent - least) as u32) << self.mantissa) + units;
        if code > u32::from(self.largest) {
            return match (self.specials, saturate) {
                (Specials::None, _) | (_, true) => sign | self.largest,
                (Specials::NegativeZeroIsNan, false) => self.sign,
                (Specials::LastIsNan | Specials::Ieee, false) => sign | (self.largest + 1),
            };
        }
        match (code as u8, self.specials) {
            (0, Specials::NegativeZeroIsNan) => 0,
            (code, _) => sign | code,
        }
    }
}

/// The exponent of the power of two next to `x`, by the table in ONNX's description of `Cast`. What the table leaves open is as
/// ONNX Runtime has it: a zero, and a number below zero, is less than the least number.
fn power(x: f32, how: NarrowRounding) -> u8 {
    const NAN: u8 = 0xff;
    let greatest = power_of_two(127);
    let least = power_of_two(-126) / 2.;
    if x.is_nan() {
        return NAN;
    }
    if x > greatest {
        return if how.saturate { NAN - 1 } else { NAN };
    }
    if x < least {
        return if how.saturate { 0 } else { NAN };
    }
    let bits = x.to_bits();
    // The numbers of the least exponent are subnormal, and have their leading bit among the others.
    let (exponent, fraction) = match (bits >> 23) as u8 {
        0 => (0, (bits << 1) & 0x7f_ffff),
        exponent => (exponent, bits & 0x7f_ffff),
    };
    let up = match how.power {
        PowerRounding::Up => fraction > 0,
        PowerRounding::Down => false,
        // A tie goes up.
        PowerRounding::Nearest => fraction >= 0x40_0000,
    };
    exponent + u8::from(up)
}

#[cfg(test)]
mod tests {
    use super::*;
    use NarrowFloat::*;

    /// FNV-1a.
    fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
        bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        })
    }

    /// Every f32 whose low 16 bits are zero, then every one in which they are 1.
    fn samples() -> impl Iterator<Item = f32> {
        let of =
            |low: u32| (0..=u16::MAX).map(move |top| f32::from_bits((u32::from(top) << 16) | low));
        of(0).chain(of(1))
    }

    fn how(saturate: bool, power: PowerRounding) -> NarrowRounding {
        NarrowRounding { saturate, power }
    }

    #[test]
    fn decoding_is_that_of_ml_dtypes() {
        // The hashes are of the float32 that ml_dtypes 0.6 converts each code to, with 0 for NaN.
        let check = |format: NarrowFloat, nans: &[u8], want: u64| {
            let codes = 0..=(0xffu8 >> (8 - format.bits()));
            let is_nan = |code: &u8| format.decode(*code).is_nan();
            assert_eq!(
                codes.clone().filter(is_nan).collect::<Vec<_>>(),
                nans,
                "{format:?}"
            );
            let all = codes.flat_map(|code| match format.decode(code) {
                x if x.is_nan() => [0; 4],
                x => x.to_le_bytes(),
            });
            assert_eq!(hash(all), want, "{format:?}");
        };
        check(F4E2M1, &[], 0x2403_bb76_b85d_fea5);
        check(F8E4M3FN, &[0x7f, 0xff], 0x854c_abd1_defe_4645);
        check(F8E4M3FNUZ, &[0x80], 0x2a74_00ed_efc9_37a5);
        check(
            F8E5M2,
            &[0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff],
            0xa537_7db4_cd98_b445,
        );
        check(F8E5M2FNUZ, &[0x80], 0x6aba_1f9f_0b3e_0fa5);
        assert_eq!(F8E8M0.decode(0), f32::MIN_POSITIVE / 2.);
        assert_eq!(F8E8M0.decode(1), f32::MIN_POSITIVE);
        assert_eq!(F8E8M0.decode(127), 1.);
        assert_eq!(F8E8M0.decode(254), 2f32.powi(127));
        assert!(F8E8M0.decode(255).is_nan());
    }

    #[test]
    fn encoding_is_that_of_ml_dtypes() {
        // The hashes are of the conversions of the samples by ml_dtypes 0.6, with 0 for NaN: by `astype`, and by
        // `astype` after `clip` to the finite numbers.
        let check = |format: NarrowFloat, saturate: bool, nan: u8, want: u64| {
            let all = samples().map(|x| match x.is_nan() {
                true => 0,
                false => format.encode(x, how(saturate, PowerRounding::Up)),
            });
            assert_eq!(hash(all), want, "{format:?}, saturating: {saturate}");
            let made = format.encode(f32::NAN, how(saturate, PowerRounding::Up));
            assert_eq!(made, nan, "{format:?}, saturating: {saturate}");
        };
        check(F4E2M1, false, 0x08, 0xa3ee_22eb_62ab_68ad);
        check(F4E2M1, true, 0x08, 0xa3ee_22eb_62ab_68ad);
        check(F8E4M3FN, false, 0x7f, 0x902b_606b_7214_44d5);
        check(F8E4M3FN, true, 0x7f, 0x42d9_adf2_c3ab_fd95);
        check(F8E4M3FNUZ, false, 0x80, 0x0f90_233f_8f09_79a5);
        check(F8E4M3FNUZ, true, 0x80, 0xf260_c163_67ed_7255);
        check(F8E5M2, false, 0x7e, 0xd8b7_c237_be09_e025);
        check(F8E5M2, true, 0x7e, 0x045f_085e_353f_b705);
        check(F8E5M2FNUZ, false, 0x80, 0x21f7_6d66_a96a_f425);
        check(F8E5M2FNUZ, true, 0x80, 0x1615_acba_264c_6245);
    }

    #[test]
    fn powers_are_rounded_as_by_onnx_runtime() {
        // The hashes are of the conversions of the samples by ONNX Runtime 1.31. They agree with the table of `Cast`, which
        // `onnx.numpy_helper.to_float8e8m0` does not do for infinities and beyond the finite numbers.
        let check = |power: PowerRounding, saturate: bool, want: u64| {
            let all = samples().map(|x| F8E8M0.encode(x, how(saturate, power)));
            assert_eq!(hash(all), want, "{power:?}, saturating: {saturate}");
        };
        check(PowerRounding::Up, true, 0xb96d_7462_2824_5525);
        check(PowerRounding::Up, false, 0xf811_e3d3_beb4_09da);
        check(PowerRounding::Down, true, 0xdebb_62f5_d33e_4edb);
        check(PowerRounding::Down, false, 0x606a_442d_c99f_20a4);
        check(PowerRounding::Nearest, true, 0x0896_bd02_2686_9cdb);
        check(PowerRounding::Nearest, false, 0x6413_9673_9230_8824);
    }

    #[test]
    fn powers_of_special_numbers_follow_the_table_of_cast() {
        let (most, least) = (2f32.powi(127), f32::MIN_POSITIVE / 2.);
        let x = [0., f32::NAN, f32::INFINITY, most * 1.5, least / 2., -1.];
        let check = |saturate: bool, power: PowerRounding, want: [u8; 6]| {
            assert_eq!(x.map(|x| F8E8M0.encode(x, how(saturate, power))), want);
        };
        check(true, PowerRounding::Up, [0, 255, 254, 254, 0, 0]);
        check(false, PowerRounding::Nearest, [255; 6]);
        for code in 0..=254 {
            for power in [
                PowerRounding::Up,
                PowerRounding::Down,
                PowerRounding::Nearest,
            ] {
                assert_eq!(F8E8M0.encode(F8E8M0.decode(code), how(false, power)), code);
            }
        }
    }
}
