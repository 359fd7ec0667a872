//! Tests of NPY files: what numpy wrote is read, what is written is read back, what is damaged is refused.

use std::fs;

use tempfile::tempdir;

use super::*;

/// What `numpy.save` writes for `numpy.array([[1, 2, 3], [4, 5, 6]], dtype='<f4', order=...)`.
fn numpy_file(fortran_order: &str, values: [f32; 6]) -> Vec<u8> {
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': {fortran_order}, 'shape': (2, 3), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(dictionary.as_bytes());
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

#[test]
fn files_of_numpy_are_read_in_both_orders() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    for (order, values) in
        [("False", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), ("True", [1.0, 4.0, 2.0, 5.0, 3.0, 6.0])]
    {
        fs::write(&path, numpy_file(order, values)).unwrap();
        let x = Tensor::read_npy(&path).unwrap();
        assert_eq!((x.shape().dims(), x.dtype()), (&[2usize, 3][..], DType::F32));
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
}

#[test]
fn every_dtype_and_rank_comes_back() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let numbers = Tensor::arange(12).unwrap();
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::BF16) {
        for shape in [&[12usize][..], &[3, 4], &[2, 1, 6]] {
            let x = numbers.cast(dtype).unwrap().reshape(shape).unwrap();
            let x = x.transpose(0, -1).unwrap();
            x.write_npy(&path).unwrap();
            let y = Tensor::read_npy(&path).unwrap();
            assert_eq!((y.shape(), y.dtype()), (x.shape(), dtype));
            assert_eq!(y.to_f64_vec().unwrap(), x.to_f64_vec().unwrap());
        }
    }
    for shape in [&[][..], &[0usize], &[3, 0]] {
        let x = Tensor::zeros(shape).unwrap();
        x.write_npy(&path).unwrap();
        assert_eq!(Tensor::read_npy(&path).unwrap().shape(), x.shape());
    }
}

#[test]
fn what_is_written_is_what_numpy_writes() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    Tensor::from_slice(&values, [2, 3]).unwrap().write_npy(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), numpy_file("False", values));
    Tensor::from_slice(&values, 6).unwrap().write_npy(&path).unwrap();
    assert!(fs::read(&path).unwrap().windows(6).any(|window| window == b"(6,), "));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let whole = numpy_file("False", [0.0; 6]);
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let error = Tensor::read_npy(&path).expect_err("a part of a file");
        let expected = if len < 128 { "ends within the header" } else { "cut off" };
        assert!(error.to_string().contains(expected), "{len}: {error}");
    }
    fs::write(&path, [whole, vec![0]].concat()).unwrap();
    assert!(Tensor::read_npy(&path).unwrap_err().to_string().contains("followed by something else"));
}

#[test]
fn a_dictionary_cut_anywhere_is_refused() {
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let parse = |text: &str| Parser { rest: text.as_bytes() }.header();
    assert_eq!(parse(text), Ok(Header { dtype: DType::F32, is_fortran: false, dims: vec![2, 3] }));
    for len in 0..text.len() {
        assert!(parse(&text[..len]).is_err(), "{}", &text[..len]);
    }
}

#[test]
fn damage_is_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let refused = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = numpy_file("False", [0.0; 6]);
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        Tensor::read_npy(&path).unwrap_err().to_string()
    };
    assert!(refused("NUMPY", "NUMPI").contains("not an NPY file"));
    assert!(refused("\u{1}\0", "\u{2}\0").contains("format 2.0; only 1.0"));
    assert!(refused("<f4", ">f4").contains("big endian"));
    assert!(refused("<f4", "|O8").contains("pickled objects"));
    assert!(refused("<f4", "<c8").contains("convert it with `.astype`"));
    assert!(refused("descr", "descs").contains("unknown key \"descs\""));
    assert!(refused("False", "Falsk").contains("where \"False\" should be"));
    assert!(refused("(2, 3)", "(2,-3)").contains("where an extent should be"));
    assert!(refused("(2, 3), }  ", "(2, 3), } x").contains("goes on after"));
    assert!(
        refused("(2, 3), }             ", "(9999999999999, 3), } ").contains("119999999999988 bytes"),
        "the product does not overflow"
    );
    assert!(refused("(2, 3), }             ", "(99999999999999, 3), }").contains("than can be counted"));
}

#[test]
fn truth_values_are_checked() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.npy");
    Tensor::from_vec(vec![true, false, true]).unwrap().write_npy(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 7;
    fs::write(&path, bytes).unwrap();
    assert!(Tensor::read_npy(&path).unwrap_err().to_string().contains("element 2 of bool is 7"));
}

#[test]
fn what_cannot_be_written_is_refused_with_advice() {
    let path = Path::new("never-written.npy");
    let x = Tensor::zeros_of(3, DType::BF16).unwrap();
    assert!(x.write_npy(path).unwrap_err().to_string().contains("cast(DType::F32)"));
    let _here = Device::ghost_cpu().enter();
    assert!(Tensor::zeros(3).unwrap().write_npy(path).unwrap_err().to_string().contains("ghost"));
    assert!(!path.exists());
}
