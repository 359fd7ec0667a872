//! `NameMap`: weights that somebody else has saved, under their names and in their order of axes.
//!
//! Rules say which tensor of the file goes to which variable, and what is done to it on the way. Nothing is guessed: a
//! tensor that no rule takes goes to the variable of its own name, and a variable that gets nothing, a tensor that
//! nobody takes, or a shape that does not fit is an error that lists all of them, and changes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_tensor::{Error, Result, Step, Tensor, Variable, at_callers_line};

use super::file::TensorFile;
use super::header::Entry;
use super::pattern::Pattern;
use super::{Differences, Named, full, unique};
use crate::model::Model;

/// What is done to a tensor on its way from a file to a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// The axes are put in another order: axis `i` of the variable is axis `order[i]` of the tensor.
    Permute(&'static [isize]),
    /// PyTorch's `[out, in]` of a linear map of flattened pictures as `[in, out]`. There pictures of these channels,
    /// height and width are flattened channel by channel, here pixel by pixel.
    Flattened([usize; 3]),
}

impl Change {
    /// PyTorch's `[out, in]` of a linear map or of a recurrent layer's gates as `[in, out]`.
    pub const LINEAR: Change = Change::Permute(&[1, 0]);
    /// PyTorch's `[out, in, width]` of a convolution as `[out, width, in]`.
    pub const CONV1D: Change = Change::Permute(&[0, 2, 1]);
    /// PyTorch's `[out, in, height, width]` of a convolution as `[out, height, width, in]`.
    pub const CONV2D: Change = Change::Permute(&[0, 2, 3, 1]);

    fn apply(self, tensor: Tensor) -> Result<Tensor> {
        match self {
            Change::Nothing => Ok(tensor),
            Change::Permute(order) => tensor.permute(order),
            Change::Flattened([channels, height, width]) => {
                let out = tensor.shape()[0];
                let pixels = tensor.reshape([out, channels, height, width])?.permute([2, 3, 1, 0])?;
                pixels.reshape([channels * height * width, out])
            }
        }
    }

    /// The extents that come out; nothing if there are not as many as the change speaks of.
    fn dims(self, entry: &Entry) -> Option<Vec<usize>> {
        let dims = entry.shape.dims();
        match self {
            Change::Nothing => Some(dims.to_vec()),
            // As `Tensor::permute` reads them: negative axes count from the end, and each is named once.
            Change::Permute(order) => {
                let named = order.iter().map(|&axis| entry.shape.axis("permute", axis).ok());
                let named: Vec<usize> = named.collect::<Option<_>>()?;
                let is_order = named.len() == dims.len() && (0..dims.len()).all(|axis| named.contains(&axis));
                is_order.then(|| named.iter().map(|&axis| dims[axis]).collect())
            }
            Change::Flattened(picture) => {
                let pixels = picture.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))?;
                match dims {
                    &[out, inputs] if inputs == pixels => Some(vec![inputs, out]),
                    _ => None,
                }
            }
        }
    }
}

/// Which tensor of a file goes to which variable.
///
/// Names may hold placeholders: `{n}` stands for a part of a name without dots, `{rest..}` for one with dots, and
/// either is put in where the other name has it again.
///
/// ```no_run
/// # use plimsoll_nn::{Layer, checkpoint::NameMap, layers::{Dense, Sequential}};
/// # let model = Sequential::new().add(Dense::new(3).named("block_0")).build([4])?;
/// NameMap::new()
///     .linear("model.layers.{n}.fc", "block_{n}")
///     .ignore("model.masks.{rest..}")
///     .load(&model, "weights.safetensors")?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct NameMap {
    rules: Vec<Rule>,
    ignored: Vec<Pattern>,
    kept: Vec<Pattern>,
}

/// Tensors that are added up, if they are several, and become a variable.
#[derive(Clone, Debug)]
struct Rule {
    from: Vec<Pattern>,
    to: Pattern,
    change: Change,
}

impl NameMap {
    /// No rules: every tensor goes to the variable of its name.
    pub fn new() -> NameMap {
        NameMap::default()
    }

    /// With one rule more: the tensor `from` goes to the variable `to`. The first rule that fits a tensor counts.
    pub fn rule(self, from: &str, to: &str, change: Change) -> NameMap {
        self.sum(&[from], to, change)
    }

    /// With one rule more: the sum of the tensors `from` goes to the variable `to`.
    pub fn sum(mut self, from: &[&str], to: &str, change: Change) -> NameMap {
        let from = from.iter().map(|name| Pattern::new(name)).collect();
        self.rules.push(Rule { from, to: Pattern::new(to), change });
        self
    }

    /// With rules for PyTorch's `Linear` as a `Dense`.
    pub fn linear(self, from: &str, to: &str) -> NameMap {
        self.weight_and_bias(from, to, Change::LINEAR)
    }

    /// With rules for PyTorch's `Linear` after a `Flatten` of pictures as a `Dense` after one; `picture` is their channels,
    /// height and width.
    pub fn linear_after_flatten(self, from: &str, to: &str, picture: [usize; 3]) -> NameMap {
        self.weight_and_bias(from, to, Change::Flattened(picture))
    }

    /// With rules for PyTorch's `Conv1d` as a `Conv1D`, or `ConvTranspose1d` as a `Conv1DTranspose`.
    pub fn conv1d(self, from: &str, to: &str) -> NameMap {
        self.weight_and_bias(from, to, Change::CONV1D)
    }

    /// With rules for PyTorch's `Conv2d` as a `Conv2D`, or `ConvTranspose2d` as a `Conv2DTranspose`.
    pub fn conv2d(self, from: &str, to: &str) -> NameMap {
        self.weight_and_bias(from, to, Change::CONV2D)
    }

    fn weight_and_bias(self, from: &str, to: &str, change: Change) -> NameMap {
        self.rule(&format!("{from}.weight"), &format!("{to}.kernel"), change).rule(
            &format!("{from}.bias"),
            &format!("{to}.bias"),
            Change::Nothing,
        )
    }

    /// With rules for PyTorch's `LayerNorm`, `GroupNorm` or `RMSNorm`: weight and bias as gamma and beta.
    pub fn norm(self, from: &str, to: &str) -> NameMap {
        self.rule(&format!("{from}.weight"), &format!("{to}.gamma"), Change::Nothing).rule(
            &format!("{from}.bias"),
            &format!("{to}.beta"),
            Change::Nothing,
        )
    }

    /// With rules for PyTorch's `BatchNorm`; its count of batches is not needed.
    pub fn batch_norm(self, from: &str, to: &str) -> NameMap {
        self.rule(&format!("{from}.running_mean"), &format!("{to}.moving_mean"), Change::Nothing)
            .rule(&format!("{from}.running_var"), &format!("{to}.moving_variance"), Change::Nothing)
            .ignore(&format!("{from}.num_batches_tracked"))
            .norm(from, to)
    }

    /// With rules for a layer of PyTorch's `LSTM` as an `LSTM`, or of its `RNN` as a `SimpleRNN`: the gates are in the same
    /// order, and its two biases, which are only ever added, become one.
    pub fn lstm(self, from: &str, layer: usize, to: &str) -> NameMap {
        let biases = ["ih", "hh"].map(|of| format!("{from}.bias_{of}_l{layer}"));
        let biases: Vec<&str> = biases.iter().map(String::as_str).collect();
        self.recurrent_kernels(from, layer, to).sum(&biases, &format!("{to}.bias"), Change::Nothing)
    }

    /// With rules for a layer of PyTorch's `GRU` as a `GRU`: the gates are in the same order, and there are two biases.
    pub fn gru(self, from: &str, layer: usize, to: &str) -> NameMap {
        self.recurrent_kernels(from, layer, to)
            .rule(&format!("{from}.bias_ih_l{layer}"), &format!("{to}.bias"), Change::Nothing)
            .rule(&format!("{from}.bias_hh_l{layer}"), &format!("{to}.recurrent_bias"), Change::Nothing)
    }

    fn recurrent_kernels(self, from: &str, layer: usize, to: &str) -> NameMap {
        self.rule(&format!("{from}.weight_ih_l{layer}"), &format!("{to}.kernel"), Change::LINEAR).rule(
            &format!("{from}.weight_hh_l{layer}"),
            &format!("{to}.recurrent_kernel"),
            Change::LINEAR,
        )
    }

    /// With rules for PyTorch's `Embedding`.
    pub fn embedding(self, from: &str, to: &str) -> NameMap {
        self.rule(&format!("{from}.weight"), &format!("{to}.embeddings"), Change::Nothing)
    }

    /// With rules for PyTorch's `MultiheadAttention`, whose queries, keys and values have one width.
    pub fn attention(self, from: &str, to: &str) -> NameMap {
        self.rule(&format!("{from}.in_proj_weight"), &format!("{to}.qkv.kernel"), Change::LINEAR)
            .rule(&format!("{from}.in_proj_bias"), &format!("{to}.qkv.bias"), Change::Nothing)
            .linear(&format!("{from}.out_proj"), &format!("{to}.output"))
    }

    /// Tensors of the file that are not wanted.
    pub fn ignore(mut self, tensors: &str) -> NameMap {
        self.ignored.push(Pattern::new(tensors));
        self
    }

    /// Variables that keep their values, because the file has nothing for them.
    pub fn keep(mut self, variables: &str) -> NameMap {
        self.kept.push(Pattern::new(variables));
        self
    }

    /// Gives the model the weights of a safetensors file. Floats are converted to the variables' dtypes.
    ///
    /// # Errors
    /// A file that is not there or is damaged; tensors that nobody takes, variables that get nothing, shapes that do
    /// not fit: all are listed. Nothing is changed then.
    #[track_caller]
    pub fn load(&self, model: &Model, path: impl AsRef<Path>) -> Result<()> {
        let _line = at_callers_line();
        let file = TensorFile::open(path.as_ref())?;
        file.verified_note()?;
        let named = model.named_variables().into_iter();
        let variables = unique(path.as_ref(), named)?;
        let plan = self.plan(&file, &variables)?;
        let Some(first) = plan.first() else { return Ok(()) };
        let device = first.variable.device();
        let _on = device.enter();
        Step::run(&device, || plan.iter().try_for_each(|part| part.assign(&file)))
    }

    /// Which tensors each variable gets; refuses whatever does not fit.
    fn plan<'a>(&self, file: &TensorFile, variables: &'a Named) -> Result<Vec<MappedVariable<'a>>> {
        let mut differences = Differences::default();
        let mut parts: BTreeMap<String, MappedVariable<'a>> = BTreeMap::new();
        for name in file.entries().keys() {
            if self.ignored.iter().any(|pattern| pattern.captures(name).is_some()) {
                continue;
            }
            let (target, wanted, change) = self.target(name);
            let Some(variable) = variables.get(&target) else {
                let to = if target == *name { String::new() } else { format!(" (for {target:?})") };
                differences.unused.push(format!("{name:?}{to}"));
                continue;
            };
            let part = parts.entry(target).or_insert_with(|| MappedVariable {
                variable,
                from: Vec::new(),
                wanted,
                change,
            });
            part.from.push(name.clone());
        }
        for name in variables.keys() {
            let kept = || self.kept.iter().any(|pattern| pattern.captures(name).is_some());
            if !parts.contains_key(name) && !kept() {
                differences.missing.push(format!("something for {name:?}"));
            }
        }
        differences.other.extend(parts.values().filter_map(|part| part.problem(file)));
        differences.check(file.path())?;
        Ok(parts.into_values().collect())
    }

    /// The variable that a tensor is for, the tensors that it is made of, and what is done to them.
    fn target(&self, name: &str) -> (String, Vec<String>, Change) {
        let matching = self.rules.iter().find_map(|rule| {
            let captures = rule.from.iter().find_map(|pattern| pattern.captures(name))?;
            let from = rule.from.iter().map(|pattern| pattern.fill(&captures)).collect();
            Some((rule.to.fill(&captures), from, rule.change))
        });
        matching.unwrap_or_else(|| (name.to_owned(), vec![name.to_owned()], Change::Nothing))
    }
}

/// A variable and what it gets.
struct MappedVariable<'a> {
    variable: &'a Variable,
    /// The tensors of the file that are for it.
    from: Vec<String>,
    /// Those that it is made of.
    wanted: Vec<String>,
    change: Change,
}

impl MappedVariable<'_> {
    /// What does not fit, in words.
    fn problem(&self, file: &TensorFile) -> Option<String> {
        let (name, variable) = (self.variable.name(), full(self.variable));
        let mut wanted = self.wanted.clone();
        wanted.sort();
        if self.from != wanted {
            let (from, wanted) = (self.from.join(", "), wanted.join(", "));
            return Some(format!("{name:?} would be made of {from}, and needs {wanted}"));
        }
        for from in &self.from {
            let entry = &file.entries()[from];
            if self.change.dims(entry).as_deref() != Some(variable.shape().dims()) {
                let change = match self.change {
                    Change::Nothing => String::new(),
                    Change::Permute(order) => format!(", to be taken in the order {order:?} of its axes"),
                    Change::Flattened(picture) => {
                        format!(", to be taken as a map of pictures of {picture:?}")
                    }
                };
                let (there, here) = (entry.shape, variable.shape());
                return Some(format!("{from:?} is {there} there{change}, and {name:?} is {here}"));
            }
            match entry.dtype {
                Err(theirs) => return Some(format!("{from:?} is {theirs}, which tensors here cannot hold")),
                Ok(theirs)
                    if theirs != variable.dtype() && !(theirs.is_float() && variable.dtype().is_float()) =>
                {
                    return Some(format!("{from:?} is {theirs}, and {name:?} is {}", variable.dtype()));
                }
                Ok(_) => {}
            }
        }
        None
    }

    /// Assigns the variable when the step ends.
    fn assign(&self, file: &TensorFile) -> Result<()> {
        let dtype = full(self.variable).dtype();
        if let ([only], Change::Nothing) = (&*self.from, self.change) {
            let entry = &file.entries()[only];
            if entry.dtype.as_ref().ok() == Some(&dtype) {
                return Variable::read_file(file.file(), file.path(), &[(self.variable, file.place(entry))]);
            }
        }
        let mut sum: Option<Tensor> = None;
        for name in &self.from {
            let tensor = self.change.apply(file.read(name)?)?.cast(dtype)?;
            sum = Some(match sum {
                None => tensor,
                Some(before) => before.into_add(tensor)?,
            });
        }
        let Some(value) = sum else {
            return Err(Error::format(file.path(), format!("nothing is for {:?}", self.variable.name())));
        };
        self.variable.assign(&value)
    }
}
