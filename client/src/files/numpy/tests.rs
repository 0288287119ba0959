use half::bf16;

use super::*;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// A file that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("convoke-numpy-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn get<'a>(all: &'a [(String, Tensor)], name: &str) -> &'a Tensor {
    &all.iter().find(|(n, _)| n == name).unwrap().1
}

/// An npy file with this header and no more than `body`.
fn npy(header: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(body);
    bytes
}

#[track_caller]
fn refused(name: &str, bytes: &[u8], expected: &str) {
    let file = Scratch::new(name, bytes);
    let e = read_npy(&file.0).expect_err(expected).to_string();
    let text = e.strip_prefix(&format!("{}: ", file.0.display()));
    assert_eq!(text, Some(expected), "{e}");
}

#[test]
fn what_numpy_writes_is_read() {
    for file in ["stored.npz", "compressed.npz"] {
        let all = read_npz(data(file)).unwrap();
        for (code, dtype) in [
            ("f2", DType::F16),
            ("f4", DType::F32),
            ("f8", DType::F64),
            ("i1", DType::I8),
            ("i2", DType::I16),
            ("i4", DType::I32),
            ("i8", DType::I64),
            ("u1", DType::U8),
            ("u2", DType::U16),
            ("u4", DType::U32),
            ("u8", DType::U64),
        ] {
            let t = get(&all, code);
            assert_eq!((t.dtype(), t.shape()), (dtype, [2, 3].as_slice()), "{file}");
            if !dtype.is_float() {
                assert_eq!(t.to_i64s().unwrap(), [0, 1, 2, 3, 4, 5]);
            }
        }
        assert_eq!(get(&all, "f4").as_slice::<f32>().unwrap()[4], 4.);
        assert_eq!(get(&all, "bool").bytes(), [1, 0, 1]);
        assert_eq!(get(&all, "scalar"), &Tensor::scalar(2.5f32));
        assert_eq!(get(&all, "empty").shape(), [0, 3]);
        let counted: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let c = Tensor::from_slice(&[2, 3, 4], &counted).unwrap();
        assert_eq!(get(&all, "fortran"), &c);
    }
}

#[test]
fn what_is_written_is_read_back() {
    let file = Scratch::new("copy.npz", b"");
    let all = read_npz(data("stored.npz")).unwrap();
    write_npz(&file.0, &all).unwrap();
    assert_eq!(read_npz(&file.0).unwrap(), all);
    let one = Scratch::new("copy.npy", b"");
    for (_, t) in &all {
        write_npy(&one.0, t).unwrap();
        assert_eq!(&read_npy(&one.0).unwrap(), t);
    }
    let halves = [half::bf16::from_f32(1.5), half::bf16::from_f32(-3e38)];
    write_npy(&one.0, &Tensor::from_slice(&[2], &halves).unwrap()).unwrap();
    let wide = halves.map(f32::from);
    assert_eq!(read_npy(&one.0).unwrap().as_slice::<f32>().unwrap(), wide);
    let twice = [all[0].clone(), all[0].clone()];
    let e = write_npz(&file.0, &twice).unwrap_err();
    assert!(matches!(e, NumpyError::Duplicate { array, .. } if array == "f2"));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a pipe needs a reader")]
fn an_archive_goes_into_a_pipe() {
    use std::os::fd::AsRawFd;

    let all = read_npz(data("stored.npz")).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let read = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    check_writable(&path).unwrap();
    write_npz(&path, &all).unwrap();
    drop(writer);
    let file = Scratch::new("piped.npz", &read.join().unwrap());
    assert_eq!(read_npz(&file.0).unwrap(), all);
}

/// What `np.save` writes of an array of `ml_dtypes.bfloat16`.
#[test]
fn elements_of_two_bytes_without_a_type_are_bf16() {
    for descr in ["<V2", "|V2"] {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,)}}");
        let file = Scratch::new("bf16.npy", &npy(&header, &[0x80, 0x3f, 0x40, 0xc0]));
        let t = read_npy(&file.0).unwrap();
        assert_eq!(t.as_slice::<bf16>().unwrap(), [1., -3.].map(bf16::from_f32));
    }
}

/// What `np.save` writes of arrays of `ml_dtypes.float8_e5m2` and `ml_dtypes.int4`.
#[test]
fn elements_of_one_byte_that_numpy_lacks_are_read_as_their_bits() {
    let check = |descr: &str, want: DType| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,)}}");
        let file = Scratch::new("narrow.npy", &npy(&header, &[0x3c, 0x7b]));
        let t = read_npy(&file.0).unwrap();
        assert_eq!((t.dtype(), t.bytes()), (want, &[0x3c, 0x7b][..]), "{descr}");
    };
    check("<f1", DType::F8E5M2);
    check("<V1", DType::U8);
    check("|V1", DType::U8);
}

#[test]
fn narrow_dtypes_are_written_as_what_they_widen_to() {
    let file = Scratch::new("wide.npy", b"");
    let check = |dtype: DType, bytes: &[u8], want: Tensor| {
        let narrow = Tensor::from_bytes(dtype, &[3], bytes).unwrap();
        write_npy(&file.0, &narrow).unwrap();
        let read = read_npy(&file.0).unwrap();
        assert_eq!(read, want, "{dtype}");
        assert_eq!(read.narrowed(dtype).unwrap(), narrow);
    };
    check(
        DType::I4,
        &[0x8f, 0x07],
        Tensor::from_slice(&[3], &[-1i8, -8, 7]).unwrap(),
    );
    check(
        DType::U2,
        &[0b11_0110],
        Tensor::from_slice(&[3], &[2u8, 1, 3]).unwrap(),
    );
    let floats = Tensor::from_slice(&[3], &[1f32, -448., 0.]).unwrap();
    check(DType::F8E4M3FN, &[0x38, 0xfe, 0x00], floats);
}

#[test]
fn other_arrays_are_refused_by_name() {
    let check = |file: &str, expected: &str| {
        let e = read_npy(data(file)).unwrap_err().to_string();
        assert_eq!(e, format!("{}: {expected}", data(file).display()));
    };
    check(
        "big_endian.npy",
        "has the byte order of '>f4'; convert it with .astype('<f4')",
    );
    check(
        "structured.npy",
        "is a structured array; convert it to plain numbers",
    );
}

#[test]
fn lying_headers_allocate_nothing() {
    let d = |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
    let check =
        |shape: &str, expected: &str| refused("lie.npy", &npy(&d(shape), &[0; 8]), expected);
    check(
        "(1000000000000,)",
        "f32[1000000000000] needs 4000000000000 bytes, the file holds 8",
    );
    check(
        "(9223372036854775807, 9)",
        "shape [9223372036854775807, 9] of f32 is too large to allocate",
    );
    check(
        "(99999999999999999999,)",
        "its shape is not a tuple of sizes",
    );
    check("(-1,)", "its shape is not a tuple of sizes");
    check(
        &format!("({})", "1,".repeat(17)),
        "has more than 16 dimensions",
    );
    check(&"(".repeat(5000), "its shape is not a tuple of sizes");
    check("(3,)", "f32[3] needs 12 bytes, the file holds 8");
    check("(1,)", "f32[1] needs 4 bytes, the file holds 8");

    refused("short.npy", b"\x93NUM", "not a .npy array");
    refused("text.npy", b"these are no numbers", "not a .npy array");
    refused(
        "v9.npy",
        b"\x93NUMPY\x09\x00\x00\x00",
        "version 9 of the .npy format is unknown",
    );
    refused(
        "long.npy",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        "declares a header of 4294967295 bytes",
    );
    refused(
        "open.npy",
        &npy("{'descr", b""),
        "its header has an unclosed quote",
    );
    refused(
        "half.npy",
        &npy("{'descr': '<f4'}", b""),
        "its header lacks descr, fortran_order or shape",
    );
    let bools = "{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}";
    refused(
        "bool.npy",
        &npy(bools, &[7]),
        "a bool tensor holds a byte that is neither 0 nor 1",
    );
}

#[test]
fn a_damaged_archive_is_an_error_at_every_length() {
    let whole = std::fs::read(data("compressed.npz")).unwrap();
    for n in (0..whole.len()).step_by(37) {
        let file = Scratch::new("cut.npz", &whole[..n]);
        let e = read_npz(&file.0).unwrap_err();
        assert!(matches!(e, NumpyError::NotNpz { .. }), "{e}");
    }
    let original = read_npz(data("compressed.npz")).unwrap();
    for at in (0..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x5a;
        let file = Scratch::new("damaged.npz", &damaged);
        // Names and dates may change unnoticed, values may not.
        for (name, t) in read_npz(&file.0).unwrap_or_default() {
            if let Some((_, known)) = original.iter().find(|(n, _)| *n == name) {
                assert_eq!(&t, known, "byte {at} changed {name}");
            }
        }
    }
}

#[test]
fn missing_files_are_named() {
    let e = read_npz("/nonexistent/x.npz").unwrap_err();
    assert_eq!(
        Error::from(e).to_string(),
        "cannot read /nonexistent/x.npz: No such file or directory (os error 2)\n  \
         check the path and its permissions"
    );
    let e = write_npy("/nonexistent/x.npy", &Tensor::scalar(1u8)).unwrap_err();
    assert!(
        e.to_string()
            .starts_with("cannot write /nonexistent/x.npy: ")
    );
    assert!(
        read_npy("/")
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}

#[test]
fn the_bytes_of_a_file_count_for_one_array() {
    let file = std::fs::read(data("stored.npz")).unwrap();
    let read = |size| Npz::new(std::io::Cursor::new(&file), size, Path::new("x.npz"));
    assert_eq!(read(file.len() as u64).unwrap().arrays().count(), 15);
    let e = read(file.len() as u64 / 4).err().unwrap().to_string();
    assert!(e.ends_with("more than the file can hold"), "{e}");
}

/// A `.npz` of these members, one after the other. Two of them may have one name, which zip writers refuse.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (i, (_, bytes)) in members.iter().enumerate() {
        let method =
            SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        zip.start_file(format!("{i:08}.npy"), method).unwrap();
        zip.write_all(bytes).unwrap();
    }
    let mut file = zip.finish().unwrap().into_inner();
    for (i, (name, _)) in members.iter().enumerate() {
        let (from, to) = (format!("{i:08}.npy"), format!("{name:_>8}.npy"));
        assert_eq!(to.len(), from.len());
        while let Some(at) = file.windows(12).position(|w| w == from.as_bytes()) {
            file[at..at + 12].copy_from_slice(to.as_bytes());
        }
    }
    file
}

const FOUR_ZEROS: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}";

#[test]
fn dtypes_and_shapes_are_told_before_anything_is_decompressed() {
    // 64 MiB of zeros are compressed to some 64 KiB, and damaged near their end: a reader that decompresses that far
    // notices.
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (16777216,)}";
    let huge = npy(header, &vec![0; 64 << 20]);
    let small = npy(FOUR_ZEROS, &[0; 16]);
    let mut bytes = archive(&[("huge", &huge), ("small", &small)]);
    drop(huge);
    assert!(bytes.len() < 100 << 10);
    bytes[60_000..60_100].fill(0x5a);
    let file = Scratch::new("huge.npz", &bytes);
    let mut npz = Npz::open(&file.0).unwrap();
    let types: Vec<String> = npz.arrays().map(|(n, t)| format!("{n} {t}")).collect();
    assert_eq!(types, ["____huge f32[16777216]", "___small f32[4]"]);
    assert_eq!(npz.read("___small").unwrap().shape(), [4]);
    let e = npz.read("____huge").unwrap_err();
    assert!(
        matches!(&e, NumpyError::Array { array, .. } if array == "____huge"),
        "{e}"
    );
    let e = npz.read("other").unwrap_err();
    assert!(matches!(e, NumpyError::Missing { array, .. } if array == "other"));
}

#[test]
fn two_arrays_of_one_name_are_refused() {
    let array = npy(FOUR_ZEROS, &[0; 16]);
    let file = Scratch::new(
        "twice.npz",
        &archive(&[("x", &array), ("y", &array), ("x", &array)]),
    );
    let e = read_npz(&file.0).unwrap_err().to_string();
    assert!(e.ends_with("holds two arrays named '_______x'"), "{e}");
}

#[test]
fn an_archive_of_many_members_is_refused_at_once() {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for i in 0..60_000 {
        zip.start_file(format!("{i}.npy"), SimpleFileOptions::default())
            .unwrap();
    }
    let file = zip.finish().unwrap().into_inner();
    let (size, path) = (file.len() as u64, Path::new("many.npz"));
    let e = Npz::new(std::io::Cursor::new(&file), size, path).err();
    let text = Error::from(e.unwrap()).to_string();
    assert!(
        text.starts_with("many.npz declares 60000 members; at most 4096 are read"),
        "{text}"
    );
}

#[test]
fn names_of_arrays_are_escaped() {
    let bad = npy("{'\u{1b}[2J': 1}", &[]);
    let file = Scratch::new("escape.npz", &archive(&[("\u{1b}[31mx", &bad)]));
    let e = read_npz(&file.0).unwrap_err().to_string();
    assert!(!e.contains('\u{1b}'), "{e}");
    assert!(
        e.contains("array '__\\u{1b}[31mx': its header has an unknown key '\\u{1b}[2J'"),
        "{e}"
    );
}

#[test]
fn what_cannot_be_written_says_why_and_before_the_work() {
    let file = Scratch::new("kept.npz", b"as it was");
    check_writable(&file.0).unwrap();
    assert_eq!(std::fs::read(&file.0).unwrap(), b"as it was");
    let absent = file.0.with_extension("absent");
    check_writable(&absent).unwrap();
    assert!(!absent.exists());
    check_writable("/dev/null").unwrap();
    let e = check_writable("/nonexistent/x.npz").unwrap_err();
    assert!(
        e.to_string()
            .starts_with("cannot write /nonexistent/x.npz: ")
    );
    let denied = |kind: std::io::ErrorKind| {
        let e = io("write", Path::new("/proc/out.npz"), kind.into());
        Error::from(e).advice
    };
    let advice = denied(std::io::ErrorKind::PermissionDenied);
    assert!(
        advice.starts_with("the folder /proc belongs to user 0 (mode 0555) and this runs as user "),
        "{advice}"
    );
    assert!(denied(std::io::ErrorKind::ReadOnlyFilesystem).contains("read-only"));
    assert!(denied(std::io::ErrorKind::StorageFull).contains("no room left"));
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let file = Scratch::new("real.npy", b"");
    let link = file.0.with_extension("link");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&file.0, &link).unwrap();
    let t = Tensor::scalar(1u8);
    write_npy(&link, &t).unwrap();
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(read_npy(&file.0).unwrap(), t);
    std::fs::remove_file(&link).unwrap();
}

#[test]
fn strings_are_read_and_written() {
    let header = |descr: &str, shape: &str, fortran: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
    };
    let wide = |text: &str| -> Vec<u8> {
        text.chars()
            .flat_map(|c| u32::from(c).to_le_bytes())
            .collect()
    };
    let read = |name: &str, descr: &str, shape: &str, fortran: &str, body: &[u8]| {
        let file = Scratch::new(name, &npy(&header(descr, shape, fortran), body));
        read_npy(&file.0)
    };
    let strings = |shape: &[usize], all: &[&str]| Tensor::from_strings(shape, all).unwrap();
    let t = read_npy(data("text.npy")).unwrap();
    assert_eq!(t, strings(&[2], &["ab", "c"]));
    let t = read("u.npy", "<U2", "(3,)", "False", &wide("été\0\0\0")).unwrap();
    assert_eq!(t, strings(&[3], &["ét", "é", ""]));
    let t = read("s.npy", "|S3", "(2,)", "False", b"ab\0cde").unwrap();
    assert_eq!(t, strings(&[2], &["ab", "cde"]));
    let t = read("f.npy", "|S1", "(2, 2)", "True", b"abcd").unwrap();
    assert_eq!(t, strings(&[2, 2], &["a", "c", "b", "d"]));
    let refused = |descr: &str, shape: &str, body: &[u8], why: &str| {
        let e = read("no.npy", descr, shape, "False", body).unwrap_err();
        assert!(e.to_string().contains(why), "{e}");
    };
    refused(
        "<U1",
        "(1,)",
        &0xd800u32.to_le_bytes(),
        "string 0 is not valid Unicode",
    );
    refused("|S1", "(1,)", &[0xff], "string 0 is not valid Unicode");
    refused("<U0", "(4000000,)", &[], "without room for a character");
    refused("<U1", "(4000000000,)", &[], "needs 16000000000 bytes");
    refused(">U1", "(1,)", &[0; 4], "unsupported dtype '>U1'");
    refused("|O", "(1,)", &[0; 8], "unsupported dtype '|O'");
    refused("|V3", "(1,)", &[0; 3], "bool U S V1 V2");
    refused("<U9999999999999999999", "(1,)", &[], "too large");

    let file = Scratch::new("written.npy", &[]);
    for t in [
        strings(&[2, 2], &["a", "日本", "", "x\"y"]),
        strings(&[], &[""]),
        strings(&[0, 3], &[]),
    ] {
        write_npy(&file.0, &t).unwrap();
        assert_eq!(read_npy(&file.0).unwrap(), t);
    }
}
