//! Image files of one picture in several formats, which Pillow wrote.

use std::sync::atomic::AtomicBool;

use convoke_common::error::{Code, Error};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs};
use convoke_kernels::Exec;

use super::*;
use crate::cpu::kernel::{Launch, Operands};
use crate::cpu::resolve;

macro_rules! files {
    ($($name:literal),+) => {
        [$(($name, include_bytes!(concat!("cases/", $name)).as_slice())),+]
    };
}

const FILES: [(&str, &[u8]); 8] = files![
    "alpha.png",
    "palette.png",
    "rgb.bmp",
    "rgb.jp2",
    "rgb.png",
    "rgb.ppm",
    "rgb.tiff",
    "rgb.webp"
];

/// The pixels of a file, by a worker with this much memory.
fn decoded(file: &[u8], format: &str, memory: u64) -> Result<Tensor, KernelFailure> {
    let cancel = AtomicBool::new(false);
    let pool = Pool::new(&Ledger::new("test", memory), Purpose::Handles, 0).unwrap();
    let attrs = Attrs::default().with("pixel_format", Attr::Str(format.into()));
    let kernel = resolve("ImageDecoder", &attrs, &[Some(DType::U8)], 1).unwrap();
    let mut inputs = [Some(Tensor::from_slice(&[file.len()], file).unwrap())];
    let mut launch = Launch {
        inputs: Operands::given(&mut inputs),
        sizes: None,
        exec: Exec::single(&cancel),
        pool: &pool,
    };
    let mut outputs = kernel.launch(&mut launch)?;
    Ok(outputs.pop().unwrap())
}

fn refusal(file: &[u8], memory: u64) -> Box<Error> {
    match decoded(file, "RGB", memory) {
        Err(KernelFailure::Error(e)) => e,
        other => panic!("{other:?}"),
    }
}

const MUCH: u64 = 1 << 26;

#[test]
fn all_formats_give_the_same_pixels() {
    let colour = |i: usize| {
        let (y, x) = (i / 5, i % 5);
        [x * 40, y * 60, x * y * 11].map(|v| v as u8)
    };
    for (name, file) in FILES {
        for (format, channels) in [("RGB", 3), ("BGR", 3), ("Grayscale", 1)] {
            let y = decoded(file, format, MUCH).unwrap();
            assert_eq!(y.shape(), [4, 5, channels], "{name}");
            let want: Vec<u8> = (0..20)
                .flat_map(|i| {
                    let [r, g, b] = colour(i);
                    let grey = 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
                    match format {
                        "RGB" => vec![r, g, b],
                        "BGR" => vec![b, g, r],
                        _ => vec![grey.round() as u8],
                    }
                })
                .collect();
            assert_eq!(y.as_slice::<u8>().unwrap(), want, "{name} as {format}");
        }
    }
}

#[test]
fn what_is_no_image_is_refused() {
    for (file, said) in [
        (&b""[..], "no bytes"),
        (b"GIF89a", "none of BMP, JPEG"),
        (b"hello", "begins with [68, 65, 6c, 6c]"),
        (b"\xff\xd8\xff\xe0", "truncated"),
        (b"P6\n0 3\n255\n", "image cannot be decoded"),
    ] {
        let e = refusal(file, MUCH);
        assert_eq!(e.code, Code::KernelFailed);
        assert!(e.to_string().contains(said), "{e}");
    }
}

#[test]
fn size_is_known_before_pixels_are_decoded() {
    let e = refusal(b"P6\n100000 100000\n255\n1", MUCH);
    assert!(e.to_string().contains("100000x100000 pixels"), "{e}");
    // The picture would take 48 MiB, and the worker has 8 MiB.
    let e = refusal(b"P6\n4096 4096\n255\n1", 8 << 20);
    assert_eq!(e.code, Code::OutOfMemory);
    // A codestream of 16,384 components, each of the size of the picture.
    let (_, file) = FILES[3];
    let at = file
        .windows(4)
        .position(|w| w == [0xFF, 0x4F, 0xFF, 0x51])
        .unwrap();
    let mut many = file.to_vec();
    many[at + 40..at + 42].copy_from_slice(&[0x40, 0]);
    let e = refusal(&many, MUCH);
    assert!(e.to_string().contains("16384 components"), "{e}");
}

#[test]
fn headers_of_jpeg_2000_bound_the_decoder() {
    let (_, file) = FILES[3];
    let place = |what: &[u8]| file.windows(what.len()).position(|w| w == what).unwrap();
    let coding = place(&[0xFF, 0x52]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = file.to_vec();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        refusal(&file, MUCH).to_string()
    };
    // Layers, then blocks of 4 by 4.
    assert!(changed(coding + 6, &[1, 0]).contains("256 layers"));
    assert!(changed(coding + 10, &[0, 0]).contains("too small"));
    // A segment that is longer than its content: the decoder would read unchecked bytes behind the content.
    assert!(changed(coding + 2, &[0, 13]).contains("wrong length"));
    // A grid of 65,535 by 65,535 in tiles of one sample.
    let sides = [0xFFFF, 0xFFFF, 0, 0, 1, 1].map(u32::to_be_bytes);
    let e = changed(place(&[0xFF, 0x51]) + 6, sides.as_flattened());
    assert!(e.contains("4294836225 tiles"), "{e}");
    // A box `cmap` of five entries, in the place of the one that names the colours.
    let colours = place(b"colr");
    let mut table = file[..colours - 4].to_vec();
    table.extend([0, 0, 0, 28]);
    table.extend(b"cmap");
    table.extend([0; 20]);
    let header = place(b"jp2h");
    let grown = u32::from_be_bytes(*file[header - 4..].first_chunk().unwrap()) + 28;
    table[header - 4..header].copy_from_slice(&grown.to_be_bytes());
    table.extend(&file[colours - 4..]);
    let e = refusal(&table, MUCH).to_string();
    assert!(e.contains("table of colours has 5"), "{e}");
}

#[test]
fn frames_of_webp_are_no_larger_than_the_image() {
    let chunk = |kind: &[u8], body: &[u8]| {
        let len = (body.len() as u32).to_le_bytes();
        [kind, &len, body, &[0][..body.len() % 2]].concat()
    };
    let side = |n: u16| n.to_le_bytes();
    let lossy = |w, h| {
        let body = [&[0x30, 1, 0, 0x9D, 1, 0x2A][..], &side(w), &side(h)].concat();
        chunk(b"VP8 ", &body)
    };
    let lossless = |w: u32, h: u32| {
        let bits = (w - 1) | (h - 1) << 14;
        chunk(b"VP8L", &[&[0x2F][..], &bits.to_le_bytes()].concat())
    };
    let frame = |within: &[u8]| chunk(b"ANMF", &[&[0; 16][..], within].concat());
    let check = |content: &[u8], fits: bool| {
        let file = [b"RIFF\0\0\0\0WEBP", &*chunk(b"VP8X", &[0; 10]), content].concat();
        let checked = webp::check(&file, 7, 5);
        assert_eq!(checked.is_ok(), fits, "{content:?}");
    };
    check(&lossy(7, 5), true);
    check(&lossless(7, 5), true);
    check(&lossy(16_383, 1), false);
    check(&lossy(1, 6), false);
    check(&lossless(8, 5), false);
    check(&lossless(7, 16_384), false);
    check(&frame(&lossy(7, 5)), true);
    check(&frame(&lossy(8, 5)), false);
    check(&[chunk(b"ALPH", &[0; 3]), lossy(7, 6)].concat(), false);
    check(&frame(&lossless(7, 5))[..20], true);
}

#[test]
fn no_file_causes_a_panic_or_another_error() {
    let mut seed = 5u64;
    let mut draw = |n: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    for (name, file) in FILES {
        let mut refused = 0;
        for round in 0..200 {
            let mut file = file.to_vec();
            match round % 2 {
                0 => file.truncate(draw(file.len())),
                _ => {
                    for _ in 0..=draw(3) {
                        let at = draw(file.len());
                        file[at] = draw(256) as u8;
                    }
                }
            }
            match decoded(&file, "RGB", MUCH) {
                Ok(y) => assert_eq!(y.shape()[2], 3),
                Err(KernelFailure::Error(e)) => {
                    let known = matches!(e.code, Code::KernelFailed | Code::OutOfMemory);
                    assert!(known, "{name}: {e}");
                    refused += 1;
                }
                Err(other) => panic!("{name}: {other}"),
            }
        }
        assert!(refused > 50, "{name}: {refused} refused");
    }
}
