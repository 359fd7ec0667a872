//! Indices out of range on a GPU: an error when the host next waits, and nothing broken. A program of its own, because the
//! first fault of a GPU shows to whoever waits first.

use plimsoll_tensor::{DType, Device, Result, Tensor};

/// A GPU with a pool of its own.
fn gpu() -> Device {
    match std::env::var("PLIMSOLL_TEST_DEVICE")
        .ok()
        .and_then(|name| name.strip_prefix("cuda:").map(str::to_owned))
    {
        Some(number) => Device::separate_cuda(number.parse().unwrap()).unwrap(),
        None => Device::emulated().unwrap(),
    }
}

#[test]
fn an_index_out_of_range_shows_when_the_host_waits() -> Result<()> {
    let gpu = gpu();
    let _on = gpu.enter();
    let (x, ids) = (Tensor::ones([4, 2])?, Tensor::from_slice(&[0i64, 4, 1], 3)?);
    let rows = Tensor::ones([3, 2])?;
    let wide = ids.reshape([3, 1])?;
    let text = "index 4 is out of range for axis 0 of extent 4; indices go from 0 to 3";
    x.embedding(&ids)?;
    x.index_select(0, &ids)?;
    x.gather(0, &wide)?;
    x.scatter_add(0, &wide, &rows.narrow(1, 0, 1)?)?;
    // The first one is named; waiting clears it.
    assert_eq!(gpu.synchronize().unwrap_err().to_string(), format!("embedding: {text}"));
    gpu.synchronize()?;
    let error = x.index_add(0, &ids, &rows)?.to_vec::<f32>().unwrap_err();
    assert_eq!(error.to_string(), format!("index_add: {text}"));
    let error = ids.one_hot(3, DType::F32)?.to_vec::<f32>().unwrap_err();
    assert!(error.to_string().contains("one_hot: index 4 is out of range for axis 1 of extent 3"), "{error}");
    // Nothing is broken.
    assert_eq!(x.embedding(&ids.narrow(0, 0, 1)?)?.to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}
