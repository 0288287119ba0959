//! Detection of the instruction set that kernels use.

use std::sync::OnceLock;

/// An instruction set for which there are micro kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// x86-64 with AVX-512 F, BW, DQ and VL (and AVX2, FMA and F16C).
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2Fma,
    /// Plain Rust with `f32::mul_add`: slow where the target has no fused multiply-add by default.
    Portable,
}

impl Isa {
    /// The best instruction set of this processor.
    #[inline]
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Isa::ALL
                .into_iter()
                .find(|i| i.available())
                .unwrap_or(Isa::Portable)
        })
    }

    const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2Fma, Isa::Portable];

    /// Whether this processor can run kernels of this instruction set.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            match self {
                Isa::Avx512 => {
                    fma && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
                Isa::Avx2Fma => fma,
                Isa::Portable => true,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }

    /// The instruction sets that this processor can run, best first, for tests that compare their results.
    pub fn all_available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|i| i.available())
    }
}
