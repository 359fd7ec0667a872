//! Elements whose fields belong together: the pipeline knows fields, and the batch gives them in their arrangement.

use plimsoll_data::{Dataset, Field, Spec};
use plimsoll_tensor::{DType, Nested, Result, Tensor};

fn numbers(first: i64) -> Result<Tensor> {
    Tensor::from_vec((first..first + 6).collect())
}

fn shapes(dataset: &Dataset) -> Result<String> {
    Ok(dataset.first()?.nested().map(|tensor| *tensor.shape()).to_string())
}

fn names(dataset: &Dataset) -> Vec<&str> {
    dataset.spec().fields().iter().map(Field::name).collect()
}

#[test]
fn slices_keep_their_arrangement_through_the_pipeline() -> Result<()> {
    let nested = Dataset::from_tensor_slices(((numbers(0)?, numbers(10)?), numbers(20)?))?;
    assert_eq!(names(&nested), ["0.0", "0.1", "1"]);
    let batches = nested.shuffle(6, 1).take(5).batch(2)?.prefetch(1);
    assert_eq!(shapes(&batches)?, "(([2], [2]), [2])");
    for batch in &batches {
        let batch = batch?;
        let [a, b, c] = batch.tensors::<3>()?.map(|tensor| tensor.to_vec::<i64>().unwrap());
        assert!(a.iter().zip(&b).zip(&c).all(|((a, b), c)| a + 10 == *b && a + 20 == *c));
        assert_eq!(batch.nested().get("0")?.get("1")?.one().unwrap().to_vec::<i64>()?, b);
    }
    let fields = [("image", numbers(0)?), ("text", numbers(0)?)];
    let named = Dataset::from_tensor_slices((fields.clone(), numbers(0)?, numbers(0)?))?;
    assert_eq!(names(&named), ["image", "text", "1", "2"]);
    assert_eq!(shapes(&named.batch(3)?)?, "({image: [3], text: [3]}, [3], [3])");
    // Where names alone do not tell them apart, paths do.
    let twice = Dataset::from_tensor_slices((fields.clone(), fields))?;
    assert_eq!(names(&twice), ["0.image", "0.text", "1.image", "1.text"]);
    Ok(())
}

#[test]
fn datasets_side_by_side_and_numbered_elements_nest() -> Result<()> {
    let pair = Dataset::from_tensor_slices([("a", numbers(0)?), ("b", numbers(0)?)])?;
    let one = Dataset::from_tensor_slices([("c", numbers(0)?)])?;
    assert_eq!(shapes(&pair.zip(&one)?.batch(2)?)?, "({a: [2], b: [2]}, [2])");
    assert_eq!(shapes(&pair.enumerate()?.batch(2)?)?, "([2], {a: [2], b: [2]})");
    Ok(())
}

#[test]
fn fields_are_arranged_by_name_or_by_a_spec() -> Result<()> {
    let flat = Dataset::from_tensor_slices([("a", numbers(0)?), ("b", numbers(10)?), ("c", numbers(20)?)])?;
    let arranged = flat.arrange((("c", "a"), "b"))?.batch(6)?;
    let given = arranged.first()?.nested();
    assert_eq!(given.get("0")?.get("0")?.one().unwrap().to_vec::<i64>()?[0], 20);
    assert_eq!(shapes(&flat.arrange(("a", "b"))?.batch(4)?)?, "([4], [4])");
    assert_eq!(flat.arrange(("a", "b"))?.batch(4)?.n_alike(), 1);
    assert!(flat.arrange(("a", "x")).unwrap_err().to_string().contains("\"x\""));

    let field = |name: &str| Field::new(name, DType::I64, ());
    let inputs = Nested::named([("x", field("x")?), ("y", field("y")?)]);
    let spec = Spec::nested(Nested::from((inputs, field("z")?)))?;
    let generated = Dataset::from_iterator(spec, || (0..4i64).map(|n| (n, n, n)));
    assert_eq!(shapes(&generated.batch(4)?)?, "({x: [4], y: [4]}, [4])");
    Ok(())
}
