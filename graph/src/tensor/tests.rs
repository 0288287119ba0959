use super::*;
use crate::offsets::ALIGN;

#[test]
fn views_share_and_writes_need_a_sole_owner() {
    let mut t = Tensor::from_slice(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
    let row = t.outer_range(1, 2).unwrap();
    assert_eq!(row.as_slice::<f32>().unwrap(), [4., 5., 6.]);
    assert_eq!(t.reshape(&[6]).unwrap().shape(), [6]);
    assert!(t.reshape(&[5]).is_none());
    assert!(t.as_mut_slice::<f32>().is_none());
    drop(row);
    t.as_mut_slice::<f32>().unwrap()[0] = 9.;
    assert_eq!(t.as_slice::<f32>().unwrap()[0], 9.);
    assert_eq!(t.bytes().as_ptr() as usize % ALIGN, 0);
    // A view of a view is unique once the tensors that it views are dropped.
    let rows = t.outer_range(1, 2).unwrap();
    let mut view = rows.reshape(&[3, 1]).unwrap();
    assert_eq!(view.as_slice::<f32>().unwrap(), [4., 5., 6.]);
    assert!(!view.is_unique() && !rows.is_unique() && !t.is_unique());
    drop((t, rows));
    assert!(view.is_unique());
    view.as_mut_slice::<f32>().unwrap()[2] = 7.;
    let at = view.bytes().as_ptr();
    let view = view.into_shape(&[3]).unwrap();
    assert_eq!((view.shape(), view.bytes().as_ptr()), (&[3][..], at));
    assert_eq!(view.as_slice::<f32>().unwrap(), [4., 5., 7.]);
    let both = view.clone();
    assert_eq!(both.into_shape(&[1, 3]).unwrap().shape(), [1, 3]);
    assert_eq!(view.shape(), [3]);
    assert!(view.into_shape(&[4]).is_none());
}

#[test]
fn a_tensor_grows_within_its_own_block() {
    let block = Block::zeroed(32).unwrap();
    let t = Tensor::from_block(DType::I64, &[1, 2], block);
    let place = t.bytes().as_ptr();
    let mut t = t.grown(&[2, 2]).unwrap();
    assert_eq!((t.shape(), t.byte_len()), (&[2, 2][..], 32));
    assert_eq!(t.bytes().as_ptr(), place);
    t.as_mut_slice::<i64>().unwrap().fill(7);
    let t = t.grown(&[1, 5]).unwrap_err();
    assert_eq!(t.as_slice::<i64>().unwrap(), [7; 4]);
    // A shared tensor, a view, and a tensor whose elements lie inline keep their shapes.
    let view = t.outer_range(0, 1).unwrap();
    let t = t.grown(&[1, 1]).unwrap_err();
    drop(t);
    assert!(view.grown(&[1, 1]).is_err());
    assert!(Tensor::scalar(1i64).grown(&[1]).is_err());
}

#[test]
fn covers_last_as_long_as_what_is_made_of_their_tensors() {
    let [first, second] = [(); 2].map(|()| Arc::new(()));
    let alive = || [&first, &second].map(|cover| Arc::strong_count(cover) > 1);
    let plain = Tensor::from_slice(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
    assert!(plain.cover().is_none());
    let row = plain.outer_range(1, 2).unwrap();
    let covered = row.covered(Box::new(first.clone()));
    drop((plain, row));
    assert_eq!(covered.as_slice::<i64>().unwrap(), [4, 5, 6]);
    assert!(covered.cover().is_some() && !covered.is_borrowed());
    let view = covered.reshape(&[3]).unwrap().outer_range(1, 3).unwrap();
    drop(covered);
    assert_eq!(view.as_slice::<i64>().unwrap(), [5, 6]);
    assert!(view.cover().is_some() && view.segment().is_none());
    // A new cover takes the place of another, which need not live on.
    let mut again = view.covered(Box::new(second.clone()));
    assert_eq!(alive(), [true, true]);
    assert!(!again.is_unique() && again.bytes_mut().is_none());
    drop(view);
    assert_eq!(alive(), [false, true]);
    assert!(again.is_unique());
    again.as_mut_slice::<i64>().unwrap()[0] = 7;
    assert_eq!(again.as_slice::<i64>().unwrap(), [7, 6]);
    drop(again);
    assert_eq!(alive(), [false, false]);
}

#[test]
fn small_tensors_are_as_any_other() {
    let check = |n: usize| {
        let data: Vec<i64> = (0..n as i64).collect();
        let mut t = Tensor::from_slice(&[n], &data).unwrap();
        let mut last = t.outer_range(n - 1, n).unwrap();
        assert_eq!(last.as_slice::<i64>().unwrap(), [n as i64 - 1]);
        assert!(t.bytes_mut().is_none() && last.bytes_mut().is_none());
        assert!(t.segment().is_none() && !t.is_borrowed());
        drop(last);
        t.as_mut_slice::<i64>().unwrap()[0] = 7;
        last = t.outer_range(0, 1).unwrap();
        drop(t);
        assert!(last.is_unique());
        last.as_mut_slice::<i64>().unwrap()[0] += 1;
        assert_eq!(last.as_slice::<i64>().unwrap(), [8]);
    };
    // One and two elements lie in the tensor itself, three in a block.
    (1..=3).for_each(check);
    let empty = Tensor::zeros(DType::F64, &[3, 0]).unwrap();
    assert!(empty.bytes().is_empty() && empty.outer_range(1, 3).is_some());
}

#[test]
fn packed_rows_that_share_a_byte_are_copied() {
    let t = Tensor::from_bytes(DType::U4, &[3, 3], &[0x10, 0x32, 0x54, 0x76, 0x08]).unwrap();
    let row = |from, to| t.outer_range(from, to).unwrap().bytes().to_vec();
    assert_eq!(row(0, 1), [0x10, 0x02]);
    assert_eq!(row(1, 2), [0x43, 0x05]);
    assert_eq!(row(1, 3), [0x43, 0x65, 0x87]);
    assert_eq!(row(2, 2), [0u8; 0]);
    assert!(t.outer_range(2, 4).is_none());
}

#[test]
fn bytes_that_are_no_packed_tensor_are_refused() {
    let check = |dtype, shape: &[usize], bytes: &[u8], ok: bool| {
        let made = Tensor::from_bytes(dtype, shape, bytes);
        assert_eq!(made.is_ok(), ok, "{dtype}{shape:?} of {bytes:?}: {made:?}");
    };
    check(DType::I4, &[3], &[0x21, 0x03], true);
    check(DType::I4, &[3], &[0x21, 0x13], false);
    check(DType::I4, &[3], &[0x21], false);
    check(DType::I4, &[3], &[0x21, 0x03, 0], false);
    check(DType::I2, &[5], &[0, 0b100], false);
    check(DType::I2, &[5], &[0, 0b11], true);
    check(DType::U2, &[usize::MAX, 2], &[], false);
}

#[test]
fn absurd_sizes_are_errors() {
    assert!(matches!(
        Tensor::zeros(DType::F32, &[usize::MAX, 2]),
        Err(TensorError::TooLarge { .. })
    ));
    assert!(matches!(
        Tensor::zeros(DType::U8, &[isize::MAX as usize]),
        Err(TensorError::OutOfMemory { .. })
    ));
    assert!(
        Tensor::zeros(DType::F32, &[0, 7])
            .unwrap()
            .bytes()
            .is_empty()
    );
}

#[test]
fn bools_are_checked() {
    assert_eq!(
        Tensor::from_bytes(DType::Bool, &[2], &[1, 2]),
        Err(TensorError::NotBool)
    );
    assert_eq!(
        Tensor::from_bools(&[2], &[true, false]).unwrap().bytes(),
        [1, 0]
    );
}
