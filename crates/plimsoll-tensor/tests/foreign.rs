//! Tensors over memory that somebody else has.

use std::sync::Arc;

use plimsoll_tensor::{DType, Device, Function, Layout, Result, Shape, Tensor, Variable};

/// A tensor over a vector that several hold.
fn over(device: &Device, numbers: &Arc<Vec<f32>>, layout: Layout) -> Result<Tensor> {
    let memory = (numbers.as_ptr().cast(), size_of_val(numbers.as_slice()));
    // SAFETY: the vector stays as long as the tensor holds it, and nobody writes it.
    unsafe { Tensor::from_foreign(device, memory, layout, DType::F32, numbers.clone()) }
}

#[test]
fn foreign_memory_is_read_where_it_lies_and_let_go_with_its_last_tensor() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let numbers = Arc::new((0..6).map(|n| n as f32).collect::<Vec<f32>>());
    let rows = over(&device, &numbers, Layout::contiguous(Shape::new(&[2, 3])?))?;
    let columns = over(&device, &numbers, Layout::new(Shape::new(&[3, 2])?, &[1, 3], 0)?)?;
    assert_eq!((device.stats().in_use, device.foreign_bytes().get()), (0, 48));
    assert!(device.report().to_string().contains("foreign     memory that others have"));
    assert_eq!(rows.transpose(0, 1)?.to_vec::<f32>()?, columns.to_vec::<f32>()?);
    let last = rows.narrow(0, 1, 1)?;
    drop((rows, columns));
    assert_eq!((Arc::strong_count(&numbers), last.to_vec::<f32>()?), (2, vec![3.0, 4.0, 5.0]));
    drop(last);
    assert_eq!((Arc::strong_count(&numbers), device.foreign_bytes().get()), (1, 0));
    Ok(())
}

#[test]
fn foreign_memory_is_never_written() -> Result<()> {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let numbers = Arc::new(vec![1.0f32; 300]);
    let layout = Layout::contiguous(Shape::new(&[300])?);
    let consumed = over(&device, &numbers, layout)? + 1.0;
    let variable = Variable::new(over(&device, &numbers, layout)?);
    variable.assign_add(&consumed)?;
    let twice = Function::new(|x: Tensor| Ok(x * 2.0));
    let doubled = twice.call(over(&device, &numbers, layout)?)?;
    let sums = (consumed.to_vec::<f32>()?, variable.value().to_vec::<f32>()?, doubled.to_vec::<f32>()?);
    assert_eq!(sums, (vec![2.0; 300], vec![3.0; 300], vec![2.0; 300]));
    assert_eq!(*numbers, vec![1.0; 300]);
    let giving = Function::new(|x: Tensor| Ok(x * 2.0)).donate([0]);
    let error = giving.call(over(&device, &numbers, layout)?).unwrap_err().to_string();
    assert!(error.contains("argument 0 is donated"), "{error}");
    Ok(())
}

#[test]
fn what_does_not_lie_within_or_begins_at_odds_is_refused() -> Result<()> {
    let device = Device::separate_cpu();
    let numbers = Arc::new(vec![1.0f32; 6]);
    let refused = |layout: Layout| over(&device, &numbers, layout).unwrap_err().to_string();
    assert!(refused(Layout::contiguous(Shape::new(&[7])?)).contains("does not lie within 24 bytes"));
    assert!(refused(Layout::new(Shape::new(&[2])?, &[6], 0)?).contains("does not lie within"));
    assert!(refused(Layout::new(Shape::new(&[2])?, &[-1], 0)?).contains("does not lie within"));
    let at_odds = (numbers.as_ptr().cast::<u8>().wrapping_add(1), 4);
    let layout = Layout::contiguous(Shape::new(&[1])?);
    // SAFETY: it is refused before anything is read.
    let error = unsafe { Tensor::from_foreign(&device, at_odds, layout, DType::F32, ()) }.unwrap_err();
    assert!(error.to_string().contains("no multiple of 4; make a copy"), "{error}");
    let ghost = Device::ghost_cpu();
    assert!(over(&ghost, &numbers, layout).unwrap_err().to_string().contains("no bytes"));
    assert_eq!((device.foreign_bytes().get(), Arc::strong_count(&numbers)), (0, 1));
    Ok(())
}

/// Sharing with other libraries on a GPU: which stream waits for which, and when the host does.
#[cfg(feature = "emulated")]
mod on_a_gpu {
    use plimsoll_cuda::{WaitsFor, take_waits};
    use plimsoll_tensor::Reader;

    use super::*;

    /// A multiple of 512, where memory of a GPU begins.
    fn aligned(numbers: &[f32]) -> usize {
        (0..numbers.len())
            .find(|&idx| numbers[idx..].as_ptr().addr().is_multiple_of(512))
            .expect("there is one in 128")
    }

    #[test]
    fn memory_of_others_is_given_back_after_the_ops_that_read_it() -> Result<()> {
        let device = Device::emulated()?;
        let _on = device.enter();
        let numbers = Arc::new((0..300).map(|n| n as f32).collect::<Vec<f32>>());
        let start = aligned(&numbers);
        // Where it begins need not be where memory of a GPU begins.
        for first in [start, start + 1, start + 37] {
            let memory = (numbers[first..].as_ptr().cast(), 24);
            let layout = Layout::new(Shape::new(&[3])?, &[-2], 5)?;
            // SAFETY: the vector stays as long as the tensor holds it, and nobody writes it.
            let x = unsafe { Tensor::from_foreign(&device, memory, layout, DType::F32, numbers.clone()) }?;
            assert_eq!(device.foreign_bytes().get(), 24);
            let doubled = x.mul(2.0)?;
            let n_waits = device.gpu().unwrap().n_waits();
            drop(x);
            assert_eq!(device.gpu().unwrap().n_waits(), n_waits + 1);
            assert_eq!((Arc::strong_count(&numbers), device.foreign_bytes().get()), (1, 0));
            let expected = [5, 3, 1].map(|idx| 2.0 * numbers[first + idx]);
            assert_eq!(doubled.to_vec::<f32>()?, expected);
        }
        Ok(())
    }

    #[test]
    fn who_reads_waits_for_the_values_and_what_comes_next_for_him() -> Result<()> {
        let device = Device::emulated()?;
        let _on = device.enter();
        let ours = device.compute_stream().unwrap();
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], 3)?;
        let waits = |first, then| WaitsFor::Stream { first, then };
        let cases = [
            (Reader::DefaultStream, vec![waits(ours, 1)], waits(1, ours)),
            (Reader::Stream(77), vec![waits(ours, 77)], WaitsFor::Everybody),
            (Reader::Unordered, vec![], WaitsFor::Everybody),
        ];
        for (reader, begins, ends) in cases {
            take_waits();
            // SAFETY: nobody works on a stream of the emulated GPU.
            let export = unsafe { x.export(reader) }?;
            assert_eq!(take_waits(), begins);
            // SAFETY: the host plays the GPU, and the export keeps three numbers there.
            let seen = unsafe { std::slice::from_raw_parts(export.as_ptr().cast::<f32>(), 3) };
            assert_eq!(seen, [1.0, 2.0, 3.0]);
            drop(export);
            assert_eq!(take_waits(), [ends]);
        }
        device.follow_default_stream()?;
        assert_eq!(take_waits(), [waits(1, ours)]);
        // A variable's value stays with who looks at it.
        let variable = Variable::new(x);
        // SAFETY: as above.
        let export = unsafe { variable.export(Reader::DefaultStream) }?;
        variable.assign_add(&Tensor::ones(3)?)?;
        // SAFETY: as above.
        let seen = unsafe { std::slice::from_raw_parts(export.as_ptr().cast::<f32>(), 3) };
        assert_eq!((seen, variable.to_vec::<f32>()?), (&[1.0, 2.0, 3.0][..], vec![2.0, 3.0, 4.0]));
        drop((export, variable));
        assert_eq!(device.stats().in_use, 0);
        Ok(())
    }

    #[test]
    fn a_view_whose_elements_lie_apart_is_not_lent() -> Result<()> {
        let device = Device::emulated()?;
        let _on = device.enter();
        let turned = Tensor::ones([2, 3])?.transpose(0, 1)?;
        // SAFETY: it is refused before anything is done.
        let refused = unsafe { turned.export(Reader::DefaultStream) };
        assert!(refused.err().unwrap().to_string().contains("copy it with `contiguous`"));
        Ok(())
    }
}
