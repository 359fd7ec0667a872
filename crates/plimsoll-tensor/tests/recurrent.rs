//! What recurrent cells keep and need: gates and nothing else of the sequence, gradients written over them, little scratch
//! memory; and the edges of a sequence.

use plimsoll_tensor::op::Form;
use plimsoll_tensor::{
    Activation, DType, Device, GradientTape, GruWeights, LstmState, RecurrentWeights, Result, SavedValue,
    Tensor,
};

const BATCH: usize = 8;
const STEPS: usize = 50;
const FEATURES: usize = 12;
const HIDDEN: usize = 16;

/// The bytes of one f32 for each example, step and hidden unit.
const UNIT: usize = BATCH * STEPS * HIDDEN * 4;

/// An input and weights for so many gates.
fn operands(n_gates: usize) -> Result<[Tensor; 4]> {
    let draw = |shape: &[usize]| Tensor::normal(shape, 0.0, 0.3, DType::F32);
    let gates = n_gates * HIDDEN;
    Ok([
        draw(&[BATCH, STEPS, FEATURES])?,
        draw(&[FEATURES, gates])?,
        draw(&[HIDDEN, gates])?,
        draw(&[gates])?,
    ])
}

/// Forms and bytes of what is saved, largest first.
fn forms(saved: &[SavedValue]) -> Vec<(Form, usize)> {
    let mut forms: Vec<_> = saved.iter().map(|value| (value.form, value.bytes)).collect();
    forms.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    forms
}

#[test]
fn an_lstm_keeps_its_gates_and_nothing_else_of_the_sequence() {
    let [x, kernel, recurrent, bias] = operands(4).unwrap();
    let tape = GradientTape::new();
    [&kernel, &recurrent, &bias].into_iter().try_for_each(|weights| tape.watch(weights)).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: Some(&bias) };
    let y = tape.record(|| x.lstm(&weights, None)).unwrap();
    // The input for the kernel's gradient; the kernel itself is not wanted, because the input is not watched.
    let input = (Form::Input, BATCH * STEPS * FEATURES * 4);
    let expected = [(Form::Gates, 4 * UNIT), input, (Form::Input, HIDDEN * 4 * HIDDEN * 4)];
    assert_eq!(forms(tape.saved().values()), expected);
    drop(y);
}

#[test]
fn a_gru_keeps_three_gates_and_one_sum_in_the_dtype_of_the_input() {
    let [x, kernel, recurrent, bias] = operands(3).unwrap().map(|tensor| tensor.cast(DType::BF16).unwrap());
    let tape = GradientTape::new();
    tape.watch(&recurrent).unwrap();
    let weights = GruWeights { kernel: &kernel, recurrent: &recurrent, biases: Some([&bias, &bias]) };
    let _y = tape.record(|| x.gru_state(&weights, None)).unwrap();
    let expected = [(Form::Gates, 4 * UNIT / 2), (Form::Input, HIDDEN * 3 * HIDDEN * 2)];
    assert_eq!(forms(tape.saved().values()), expected);
}

#[test]
fn a_simple_cell_keeps_its_hidden_states_once() {
    let [x, kernel, recurrent, _] = operands(1).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
    for (sequence, form) in [(true, Form::Output), (false, Form::Gates)] {
        let tape = GradientTape::new();
        tape.watch(&recurrent).unwrap();
        let y = tape.record(|| match sequence {
            true => x.simple_rnn(&weights, Activation::Tanh, None).map(|(sequence, _)| sequence),
            false => x.simple_rnn_state(&weights, Activation::Tanh, None),
        });
        let saved = tape.saved();
        assert_eq!(forms(saved.values())[0], (form, UNIT));
        assert_eq!(saved.bytes(), UNIT + HIDDEN * HIDDEN * 4);
        drop(y);
    }
}

/// The most bytes in use by backward beyond what was in use before it.
fn peak_of_backward(tape: &GradientTape, device: &Device, y: &Tensor, sources: &[&Tensor]) -> u64 {
    device.pool().reset_peaks();
    let before = device.stats().in_use;
    tape.gradients(&[y], None, sources, Default::default()).unwrap();
    device.stats().peak_in_use - before
}

#[test]
fn backward_writes_over_the_gates() {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let [x, kernel, recurrent, bias] = operands(4).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: Some(&bias) };
    let peak = |persistent: bool| {
        let tape = GradientTape::new().persistent(persistent);
        tape.watch(&bias).unwrap();
        let y = tape.record(|| x.lstm_state(&weights, None)).unwrap().hidden;
        peak_of_backward(&tape, &device, &y, &[&bias])
    };
    let (once, again) = (peak(false), peak(true));
    // A persistent tape needs its gates again, so the gradients lie beside them.
    assert_eq!(again - once, 4 * UNIT as u64, "{once} B, {again} B");
}

#[test]
fn inference_holds_no_gates() {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let [x, kernel, recurrent, bias] = operands(4).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: Some(&bias) };
    device.pool().reset_peaks();
    let before = device.stats().in_use;
    let state = x.lstm_state(&weights, None).unwrap();
    let peak = device.stats().peak_in_use - before;
    assert!(peak < 2 * UNIT as u64, "{peak} B, where the gates of all steps are {} B", 4 * UNIT);
    drop(state);
}

#[test]
fn a_state_carries_a_sequence_on() {
    let [x, kernel, recurrent, bias] = operands(4).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: Some(&bias) };
    let (whole, end) = x.lstm(&weights, None).unwrap();
    let (_, state) = x.narrow(1, 0, 20).unwrap().lstm(&weights, None).unwrap();
    let (rest, same_end) = x.narrow(1, 20, STEPS - 20).unwrap().lstm(&weights, Some(&state)).unwrap();
    let values = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap();
    assert_eq!(values(&whole.narrow(1, 20, STEPS - 20).unwrap()), values(&rest));
    assert_eq!(values(&end.hidden), values(&same_end.hidden));
    assert_eq!(values(&end.cell), values(&same_end.cell));
    assert_eq!(values(&whole.select(1, -1).unwrap()), values(&end.hidden));
}

#[test]
fn an_empty_sequence_gives_the_initial_state_and_its_gradient() {
    let [x, kernel, recurrent, _] = operands(4).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
    let draw = || Tensor::normal([BATCH, HIDDEN], 0.0, 1.0, DType::F32).unwrap();
    let state = LstmState { hidden: draw(), cell: draw() };
    let none = x.narrow(1, 0, 0).unwrap();
    let tape = GradientTape::new();
    tape.watch(&state.hidden).unwrap();
    tape.watch(&recurrent).unwrap();
    let (sequence, end) = tape.record(|| none.lstm(&weights, Some(&state))).unwrap();
    assert_eq!(sequence.shape().dims(), [BATCH, 0, HIDDEN]);
    assert_eq!(end.hidden.to_vec::<f32>().unwrap(), state.hidden.to_vec::<f32>().unwrap());
    assert_eq!(end.cell.to_vec::<f32>().unwrap(), state.cell.to_vec::<f32>().unwrap());
    let [d_state, d_recurrent] = tape.gradient(&end.hidden, [&state.hidden, &recurrent]).unwrap();
    assert!(d_state.to_vec::<f32>().unwrap().iter().all(|&d| d == 1.0));
    assert!(d_recurrent.to_vec::<f32>().unwrap().iter().all(|&d| d == 0.0));
}

#[test]
fn an_empty_batch_has_a_gradient() {
    let [x, kernel, recurrent, bias] = operands(3).unwrap();
    let weights = GruWeights { kernel: &kernel, recurrent: &recurrent, biases: Some([&bias, &bias]) };
    let nobody = x.narrow(0, 0, 0).unwrap();
    let tape = GradientTape::new();
    tape.watch(&kernel).unwrap();
    let (sequence, hidden) = tape.record(|| nobody.gru(&weights, None)).unwrap();
    assert_eq!((sequence.shape().dims(), hidden.shape().dims()), (&[0, STEPS, HIDDEN][..], &[0, HIDDEN][..]));
    let [d_kernel] = tape.gradient(&sequence, [&kernel]).unwrap();
    assert!(d_kernel.to_vec::<f32>().unwrap().iter().all(|&d| d == 0.0));
}

#[test]
fn an_activation_that_cannot_be_undone_from_its_output_is_refused() {
    let [x, kernel, recurrent, _] = operands(1).unwrap();
    let weights = RecurrentWeights { kernel: &kernel, recurrent: &recurrent, bias: None };
    let error = x.simple_rnn(&weights, Activation::Gelu, None).unwrap_err().to_string();
    assert!(error.contains("Gelu") && error.contains("it must be Tanh, Relu"), "{error}");
}
