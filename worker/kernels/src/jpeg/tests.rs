//! Files that Pillow wrote, or libjpeg-turbo where Pillow has no such form (`down`, `quarter`), beside the pixels that Pillow
//! reads from them with libjpeg-turbo.

use std::sync::atomic::AtomicBool;

use super::*;

macro_rules! cases {
    ($($name:literal),+) => {
        [$((
            $name,
            include_bytes!(concat!("cases/", $name, ".jpg")).as_slice(),
            include_bytes!(concat!("cases/", $name, ".pixels")).as_slice(),
        )),+]
    };
}

/// Coarse colours along both axes, along rows, along columns and four times along rows; restart markers, progressive files,
/// one component, and planes of two columns.
const CASES: [(&str, &[u8], &[u8]); 8] = cases![
    "coarse",
    "across",
    "down",
    "quarter",
    "restarts",
    "progressive",
    "grey",
    "narrow"
];

/// The pixels of a file that is not large.
fn decoded(file: &[u8]) -> Result<Vec<u8>, JpegError> {
    let cancel = AtomicBool::new(false);
    let jpeg = Jpeg::open(file)?;
    let work = jpeg.coefficients();
    if work > 1 << 18 {
        return Err(JpegError::File("large"));
    }
    let mut out = vec![7; jpeg.width() * jpeg.height() * jpeg.channels()];
    let exec = Exec::single(&cancel);
    jpeg.decode(&exec, &mut vec![1; work], &mut vec![1; work], &mut out)?;
    Ok(out)
}

#[test]
fn pixels_are_those_of_libjpeg_turbo() {
    for (name, file, pixels) in CASES {
        assert_eq!(decoded(file).as_deref(), Ok(pixels), "{name}");
    }
}

#[test]
fn a_file_that_ends_too_early_is_refused() {
    for (name, file, pixels) in CASES {
        for len in 0..file.len() - 2 {
            match decoded(&file[..len]) {
                Err(JpegError::File(_)) => {}
                other => panic!("{name}, {len} of {} bytes: {other:?}", file.len()),
            }
        }
        // Only the end marker of a sequential file is missing.
        let most = decoded(&file[..file.len() - 2]);
        match name {
            "progressive" | "grey" => assert_eq!(most, Err(TRUNCATED), "{name}"),
            _ => assert_eq!(most.as_deref(), Ok(pixels), "{name}"),
        }
    }
}

#[test]
fn no_file_causes_a_panic() {
    let mut seed = 9u64;
    let mut draw = |n: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let (mut read, mut refused) = (0, 0);
    for (_, file, _) in CASES {
        for _ in 0..1000 {
            let mut file = file.to_vec();
            for _ in 0..=draw(4) {
                let at = draw(file.len());
                file[at] = draw(256) as u8;
            }
            match decoded(&file) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(
        read > 100 && refused > 100,
        "{read} read, {refused} refused"
    );
}

#[test]
fn what_is_not_decoded_is_named() {
    let (_, file, _) = CASES[0];
    let sof = file.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    for (at, byte, said) in [
        (sof + 1, 0xC3, "lossless"),
        (sof + 1, 0xC9, "arithmetically"),
        (sof + 4, 12, "8 bits"),
        (sof + 9, 4, "CMYK"),
        (sof + 9, 2, "1 or 3 components"),
    ] {
        let mut file = file.to_vec();
        file[at] = byte;
        match decoded(&file) {
            Err(JpegError::File(why)) => assert!(why.contains(said), "{why}"),
            other => panic!("{said}: {other:?}"),
        }
    }
}
