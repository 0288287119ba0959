//! Functions too rare to vectorize: computed in `f64` by the pure-Rust `libm` crate and rounded once.

macro_rules! through_f64 {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            libm::$name(f64::from(x)) as f32
        }
    )*};
}

through_f64! {
    /// Hyperbolic sine.
    sinh,
    /// Hyperbolic cosine.
    cosh,
    /// Arc sine.
    asin,
    /// Arc cosine.
    acos,
    /// Arc tangent.
    atan,
    /// Inverse hyperbolic sine.
    asinh,
    /// Inverse hyperbolic cosine.
    acosh,
    /// Inverse hyperbolic tangent.
    atanh,
}
