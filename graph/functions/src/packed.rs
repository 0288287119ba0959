//! Elements of less than a byte, as ONNX packs them: the first one is in the lowest bits of the first byte.
//!
//! Every function takes the number of bits of an element, which is 2, 4 or 8.
//!
//! Invariants
//! 1. Bits after the last element are zero, so that equal elements have equal bytes.

/// Elements in a byte.
#[inline]
pub const fn per_byte(bits: usize) -> usize {
    match bits {
        2 => 4,
        4 => 2,
        _ => 1,
    }
}

/// The bits of an element, in the low bits of a byte.
#[inline]
const fn mask(bits: usize) -> u8 {
    match bits {
        2 => 0b11,
        4 => 0b1111,
        _ => u8::MAX,
    }
}

/// The bits of element `i`, in the low bits of the result; 0 where there is no such element.
#[inline]
pub fn element(bits: usize, packed: &[u8], i: usize) -> u8 {
    let per = per_byte(bits);
    let byte = packed.get(i / per).copied().unwrap_or(0);
    (byte >> (i % per * bits)) & mask(bits)
}

/// Spreads the elements from number `first` on over a byte each; `to` decides how many.
pub fn unpack(bits: usize, packed: &[u8], first: usize, to: &mut [u8]) {
    for (i, to) in to.iter_mut().enumerate() {
        *to = element(bits, packed, first + i);
    }
}

/// Packs elements that have a byte each, of which only the low bits count. The bits after the last element become zero.
pub fn pack(bits: usize, elements: &[u8], packed: &mut [u8]) {
    for (from, byte) in elements.chunks(per_byte(bits)).zip(packed) {
        let each = from.iter().enumerate();
        *byte = each.fold(0, |byte, (i, e)| byte | ((e & mask(bits)) << (i * bits)));
    }
}

/// The bits of the last byte that belong to none of `elements` elements, as a mask.
pub fn padding(bits: usize, elements: usize) -> u8 {
    match elements % per_byte(bits) {
        0 => 0,
        used => u8::MAX << (used * bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_packed_from_the_low_bits_up() {
        let check = |bits: usize, elements: &[u8], bytes: &[u8]| {
            let mut packed = vec![0xff; bytes.len()];
            pack(bits, elements, &mut packed);
            assert_eq!(packed, bytes, "{bits} bits");
            for first in 0..elements.len() {
                let mut back = vec![0; elements.len() - first];
                unpack(bits, bytes, first, &mut back);
                assert_eq!(back, elements[first..], "{bits} bits from {first}");
            }
        };
        check(4, &[1, 2, 15], &[0x21, 0x0f]);
        check(4, &[15, 8], &[0x8f]);
        check(2, &[0, 1, 2, 3, 1], &[0b1110_0100, 1]);
        check(8, &[200, 3], &[200, 3]);
        check(4, &[], &[]);
    }

    #[test]
    fn what_is_not_there_is_zero() {
        assert_eq!(element(4, &[0xff], 2), 0);
        let paddings = [
            (4, 2, 0),
            (4, 3, 0xf0),
            (2, 1, 0xfc),
            (2, 3, 0xc0),
            (8, 7, 0),
        ];
        for (bits, elements, want) in paddings {
            assert_eq!(padding(bits, elements), want, "{elements} of {bits} bits");
        }
    }
}
