//! Nothing of an element's size lives outside the pool while a dataset is iterated.

mod common;

use common::device;
use plimsoll_data::{Csv, Dataset, ExampleMut, Field, Spec};
use plimsoll_tensor::{DType, Tensor};
use plimsoll_testkit::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The numbers of an element: 64 KiB.
const LEN: usize = 1 << 14;
/// What may be allocated at once: lists of items, names, messages.
const SMALL: usize = 8 << 10;

fn spec(name: &str) -> Spec {
    Spec::new([Field::new(name, DType::F32, LEN).unwrap()]).unwrap()
}

/// What a CSV file may take of the heap, whatever is in it.
const FOR_CSV: usize = 64 << 10;

fn csv_files_of_any_kind_take_no_heap() {
    let (_device, _on) = device();
    let folder = plimsoll_testkit::Folder::new("csv-heap");
    let columns: String = (0..80_000).map(|n| format!("c{n},")).collect();
    let wide = format!("{columns}last\n{}1\n", "2.5,".repeat(80_000));
    let open_quote = format!("a,b\n1,\"{}", "x".repeat(8 << 20));
    let open_name = format!("a,\"{}", "x,\n".repeat(1 << 20));
    let long = format!("a\n{}", "1\n".repeat(1 << 20));
    let cases = [(&wide, true), (&open_quote, false), (&open_name, false), (&long, true)];
    for (number, (contents, is_good)) in cases.into_iter().enumerate() {
        let path = folder.file("x.csv", contents.as_bytes());
        HEAP.forget_peak();
        let before = HEAP.peak_bytes();
        let read = Csv::new(&path).read();
        let heap = HEAP.peak_bytes() - before;
        assert_eq!(read.is_ok(), is_good, "file {number}: {:?}", read.err());
        assert!(heap < FOR_CSV, "file {number} of {} bytes took {heap}", contents.len());
        let error = Csv::new(&path).column("last but one", DType::F32).read().expect_err("no such column");
        assert!(error.to_string().len() < 1000, "{error}");
    }
}

/// One test after the other, because they count what is on the heap.
#[test]
fn heap() {
    csv_files_of_any_kind_take_no_heap();
    elements_stay_in_the_pool();
}

fn elements_stay_in_the_pool() {
    let (_device, _on) = device();
    let x = Tensor::ones([40, LEN]).unwrap();
    let slices = Dataset::from_tensor_slices(x).unwrap();
    let generated = Dataset::from_generator(spec("0"), |_| {
        let mut n = 0;
        move |to: &mut ExampleMut<'_>| {
            n += 1;
            to.values_mut::<f32>(0)?.fill(1.0);
            Ok(n <= 40)
        }
    });
    for source in [slices, generated.take(40)] {
        let doubled = source.shuffle(7, 1).map(spec("y"), |from, to| {
            let (from, to) = (from.values::<f32>(0)?, to.values_mut::<f32>(0)?);
            to.iter_mut().zip(from).for_each(|(y, x)| *y = 2.0 * x);
            Ok(())
        });
        let again = doubled.map(spec("z"), |from, to| to.copy("z", from, "y"));
        let kept = again.filter(|example| Ok(example.values::<f32>("z")?[0] > 1.0)).cache().unwrap();
        let dataset = kept.check_finite().batch(8).unwrap().prefetch(2).workers(2);
        HEAP.forget_largest();
        let mut n_batches = 0;
        for epoch in 0..2 {
            for batch in &dataset {
                let batch = batch.unwrap();
                assert_eq!((batch.epoch(), batch["z"].shape().dims()), (epoch, &[8, LEN][..]));
                n_batches += 1;
            }
        }
        assert_eq!(n_batches, 10);
        assert!(HEAP.largest_allocation() < SMALL, "{} bytes at once", HEAP.largest_allocation());
    }
}
