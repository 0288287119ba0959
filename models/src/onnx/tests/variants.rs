//! Tests of forms of ops that few exporters write.

use super::*;

#[test]
fn statistics_may_belong_to_elements() {
    let bn = |version: i64, x: &[&str], of: &[i64]| {
        let ones = vec![1.; of.iter().product::<i64>() as usize];
        let statistics = ["s", "b", "m", "v"].map(|name| floats(name, of, &ones));
        let attributes = match version {
            7.. => vec![int("spatial", 0)],
            _ => vec![int("spatial", 0), int("is_test", 1)],
        };
        let n = node("BatchNormalization", "x s b m v", "y", attributes);
        let g = graph(vec![value("x", F32, x)], statistics.into(), vec![n], "y");
        model(version, g)
    };
    let check = |version: i64, x: &[&str], of: &[i64], want: &str| {
        let f = import(&bn(version, x, of));
        let at = f.nodes.iter().find(|n| &*n.op == "BatchNormalization");
        let at = at.expect("is normalised").inputs[0].unwrap();
        assert_eq!(f.ty(at).to_string(), want);
        let given = f.ty(f.params[0]).to_string();
        assert_eq!(f.ty(f.results[0].1).to_string(), given);
    };
    for version in [6, 8] {
        check(version, &["n", "2", "3"], &[2, 3], "f32[n, 6]");
        check(version, &["n", "2"], &[2], "f32[n, 2]");
    }
    check(6, &["n", "2", "3"], &[2], "f32[n, 2, 3]");
    for of in [&[2][..], &[3, 2], &[1, 2, 3]] {
        let message = "are not those of each element of";
        let e = try_import(&bn(8, &["n", "2", "3"], of)).unwrap_err();
        assert!(
            e.code() == Code::InvalidModel && e.to_string().contains(message),
            "{e}"
        );
    }
}

#[test]
fn training_that_drops_nothing_is_the_identity() {
    let with = |version: i64, operands: &str| {
        let weights = vec![
            floats("none", &[], &[0.]),
            floats("half", &[], &[0.5]),
            raw("no", BOOL, &[], vec![0]),
            raw("yes", BOOL, &[], vec![1]),
        ];
        let inputs = vec![
            value("x", F32, &["4"]),
            value("mode", BOOL, &[]),
            value("ratio", F32, &[]),
        ];
        let n = node("Dropout", operands, "y mask", vec![]);
        model(version, graph(inputs, weights, vec![n], "y mask"))
    };
    for version in [12, 13, 22] {
        for operands in ["x none yes", "x none mode", "x half no", "x _ no", "x half"] {
            let f = import(&with(version, operands));
            assert_eq!(f.ty(f.results[1].1).to_string(), "bool[4]");
            assert_eq!(lines(&f).last().unwrap(), "Identity(x)");
        }
        for operands in ["x half yes", "x half mode", "x _ yes", "x ratio yes"] {
            let e = try_import(&with(version, operands)).unwrap_err();
            let message = "a ratio that is not known to be 0";
            assert!(e.to_string().contains(message), "{e}");
        }
    }
}

#[test]
fn ranges_of_halves_are_computed_in_the_dtype_that_is_named() {
    let range = |dtype: i32, stash: Option<i64>| {
        let operand = |name: &str| value(name, dtype, &[]);
        let attributes = stash.map(|code| int("stash_type", code));
        let n = node("Range", "a b c", "y", attributes.into_iter().collect());
        let inputs = ["a", "b", "c"].map(operand).into();
        model(27, graph(inputs, vec![], vec![n], "y"))
    };
    let check = |dtype: i32, stash: Option<i64>, ops: &[&str]| {
        let f = import(&range(dtype, stash));
        let made: Vec<&str> = f.nodes.iter().map(|n| &*n.op).collect();
        assert_eq!(made, ops);
        assert_eq!(f.ty(f.results[0].1).dtype, f.ty(f.params[0]).dtype);
    };
    const HALVES: [i32; 2] = [10, 16];
    for dtype in HALVES {
        check(dtype, None, &["Range"]);
        check(dtype, Some(1), &["Range"]);
        check(dtype, Some(11), &["Cast", "Cast", "Cast", "Range", "Cast"]);
        let e = try_import(&range(dtype, Some(10))).unwrap_err().to_string();
        assert!(e.contains("attribute 'stash_type' is 10"), "{e}");
    }
    check(F32, Some(11), &["Range"]);
    check(I64, Some(0), &["Range"]);
}
