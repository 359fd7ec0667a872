//! Building: from the description of a layer to a model.
//!
//! While a layer is being made, [`variable`] names what it makes by the path of the layers around it and notes it for
//! the model; layers that it builds are noted as its parts, under names that differ: `dense`, `dense_1`. Nothing has to be
//! listed by hand, so nothing can be forgotten. A model that was built before is a layer, too: it becomes a part with the
//! variables that it has, however often it is applied.

use std::cell::RefCell;

use plimsoll_tensor::{
    Device, Error, IntoShape, Nested, Owner, Result, Shape, Site, Variable, current_scope, enter_layer,
    with_own_places, with_owner,
};

use crate::initializer::{Fans, Initializer};
use crate::layer::{Layer, Settings};
use crate::model::{Model, Parts};
use crate::placement::Placement;
use crate::policy::{current_policy, with_policy};
use crate::shards;

/// What has been made so far of a layer that is being built.
struct Frame {
    placement: Placement,
    variables: Vec<OwnVariable>,
    parts: Vec<Model>,
    /// Models that had been built before, and the parts that they became.
    adopted: Vec<(Model, Model)>,
    frozen: bool,
}

impl Frame {
    /// A name that no part has yet: a repeated one gets a number.
    fn part_name(&self, name: &str) -> String {
        let is_free = |name: &str| self.parts.iter().all(|part| part.name() != name);
        let numbered = (1..).map(|number| format!("{name}_{number}"));
        std::iter::once(name.to_owned()).chain(numbered).find(|name| is_free(name)).unwrap_or_default()
    }
}

/// A variable that a layer made itself.
#[derive(Clone)]
pub(crate) struct OwnVariable {
    /// The name inside the layer.
    pub name: String,
    pub variable: Variable,
    /// Whether it is never trained, such as running statistics.
    pub is_buffer: bool,
}

thread_local!(static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) });

/// A layer that was built, for whoever looks for layers that could be recomputed.
pub(crate) struct BuiltPart {
    /// Its path from the outermost layer.
    pub path: String,
    /// Where it was described.
    pub described: Site,
    /// Whether it gives one tensor, as what is recomputed must.
    pub has_one_output: bool,
}

/// A line of a program.
type Place = (&'static str, u32);

/// What was built since somebody asked for it, and which place's layers are recomputed meanwhile.
struct Watched {
    recomputed: Option<Place>,
    built: Vec<BuiltPart>,
}

thread_local!(static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) });

/// Runs `f` as if [`Layer::recompute`] were written at a place that describes layers, and tells which layers were built.
pub(crate) fn with_recomputed<R>(recomputed: Option<Place>, f: impl FnOnce() -> R) -> (R, Vec<BuiltPart>) {
    /// Gives back what was there, also if `f` panics.
    struct Restore(Option<Watched>);
    impl Drop for Restore {
        fn drop(&mut self) {
            WATCHED.set(self.0.take());
        }
    }
    let _restore = Restore(WATCHED.replace(Some(Watched { recomputed, built: Vec::new() })));
    let result = f();
    let built = WATCHED.take().map_or_else(Vec::new, |watched| watched.built);
    (result, built)
}

/// Notes a layer that was built for whoever watches; whether it is to be recomputed.
fn is_recomputed(part: BuiltPart) -> bool {
    WATCHED.with_borrow_mut(|watched| {
        let Some(watched) = watched else { return false };
        let is_there = watched.recomputed.is_some() && part.described.place() == watched.recomputed;
        let is_recomputed = part.has_one_output && is_there;
        watched.built.push(part);
        is_recomputed
    })
}

/// The frame of the layer that is being built; gone also if building it panics.
struct OpenFrame {
    n_below: usize,
}

impl OpenFrame {
    /// A frame for a layer on the current device.
    fn push(frozen: bool) -> OpenFrame {
        let placement = placement_on(Device::current());
        FRAMES.with_borrow_mut(|frames| {
            let frozen = frozen || frames.last().is_some_and(|frame| frame.frozen);
            let (variables, parts, adopted) = (Vec::new(), Vec::new(), Vec::new());
            frames.push(Frame { placement, variables, parts, adopted, frozen });
            OpenFrame { n_below: frames.len() - 1 }
        })
    }

    fn pop(self) -> Option<Frame> {
        FRAMES.with_borrow_mut(|frames| frames.pop())
    }
}

impl Drop for OpenFrame {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| frames.truncate(self.n_below));
    }
}

/// The placement of a layer on a device, inside the one that is being built.
fn placement_on(device: Device) -> Placement {
    FRAMES.with_borrow(|frames| Placement::new(device, frames.last().map(|frame| &frame.placement)))
}

/// Builds a layer for examples of the shapes `input`, as a part of the layer that is being built, if one is: under its name,
/// or one like it if that is taken. The outermost layer adds nothing to the path.
pub(crate) fn build(layer: &dyn Layer, input: &Nested<Shape>, described: Site) -> Result<Model> {
    let name = FRAMES.with_borrow(|frames| frames.last().map(|frame| frame.part_name(layer.name())));
    let name = name.unwrap_or_default();
    let settings = layer.settings();
    if let Some(model) = layer.built() {
        return adopt(model, layer.name(), (&name, &settings), input, described);
    }
    let policy = settings.policy.unwrap_or_else(current_policy);
    let _there = settings.device.as_ref().map(Device::enter);
    let open = OpenFrame::push(settings.frozen);
    let (made, path) = {
        let _layer = enter_layer(&name, described);
        let made = with_policy(policy, || with_own_places(|| layer.make_nested(input)));
        (made, current_scope())
    };
    let Some(frame) = open.pop() else { unreachable!("this layer's frame is the last") };
    let forward = made.map_err(|error| error.in_layer(&path, described.place()))?;
    if settings.recompute && forward.output.one().is_none() {
        let detail = format!(
            "only a layer that gives one tensor can be recomputed; this one gives {}",
            forward.output
        );
        return Err(Error::argument("recompute", detail).in_layer(&path, described.place()));
    }
    let has_one_output = forward.output.one().is_some();
    let recompute =
        is_recomputed(BuiltPart { path: path.clone(), described, has_one_output }) || settings.recompute;
    let model = Model::new(Parts {
        name,
        kind: layer.name().to_owned(),
        path,
        described,
        input: input.clone(),
        forward,
        placement: frame.placement.taking_inputs(settings.device.is_some() || !frame.variables.is_empty()),
        variables: frame.variables,
        parts: frame.parts,
        policy,
        recompute,
        is_pure: layer.is_pure(),
        cut: shards::current_cut(),
    });
    note_part(&model, None);
    Ok(model)
}

/// Makes a model that has been built a part of the layer that is being built: with the variables that it has, which are
/// called by their new path from now on. Where it is applied again, it is the same part.
fn adopt(
    model: &Model,
    kind: &str,
    (name, settings): (&str, &Settings),
    input: &Nested<Shape>,
    described: Site,
) -> Result<Model> {
    let path = match current_scope() {
        scope if scope.is_empty() || name.is_empty() => format!("{scope}{name}"),
        scope => format!("{scope}.{name}"),
    };
    if let Some(device) = settings.device.as_ref().filter(|device| *device != model.device()) {
        let detail =
            format!("the model was built on {}, and is to be on {device}; build it there", model.device());
        return Err(Error::device("model", detail).in_layer(&path, described.place()));
    }
    if !model.takes_shapes(input) {
        let detail =
            format!("the model was built for examples of {}, and is given {input}", model.input_shapes());
        return Err(Error::shape("model", detail).in_layer(&path, described.place()));
    }
    let known = FRAMES.with_borrow(|frames| {
        let adopted = frames.last().map_or(&[][..], |frame| &frame.adopted);
        adopted.iter().find(|(before, _)| before == model).map(|(_, part)| part.clone())
    });
    if let Some(part) = known {
        return Ok(part);
    }
    let is_frozen = FRAMES.with_borrow(|frames| frames.last().is_some_and(|frame| frame.frozen));
    let placement = placement_on(model.device().clone()).taking_inputs(true);
    let part = model.nested_as((name, kind, &path), described, settings, placement);
    if settings.frozen || is_frozen {
        part.set_trainable(false);
    }
    if !name.is_empty() {
        part.named_variables_in(&path).into_iter().for_each(|(name, variable)| _ = variable.named(&name));
    }
    note_part(&part, Some(model));
    Ok(part)
}

/// Notes a part of the layer that is being built, and the model that it was before.
fn note_part(part: &Model, before: Option<&Model>) {
    FRAMES.with_borrow_mut(|frames| {
        let Some(outer) = frames.last_mut() else { return };
        outer.parts.push(part.clone());
        outer.adopted.extend(before.map(|before| (before.clone(), part.clone())));
    });
}

/// Makes a trainable variable of the layer that is being built, under the policy of the moment: the master dtype, and
/// a copy to compute with where the policy is mixed.
///
/// # Errors
/// Memory that is full.
#[track_caller]
pub fn variable(name: &str, shape: impl IntoShape, initializer: Initializer, fans: Fans) -> Result<Variable> {
    let _line = plimsoll_tensor::at_callers_line();
    let policy = current_policy();
    let made = with_owner(Owner::Parameters, || initializer.tensor(shape, policy.variable_dtype(), fans))?;
    let frozen = FRAMES.with(|frames| frames.borrow().last().is_some_and(|frame| frame.frozen));
    let variable = Variable::new(made).named(&full_name(name)).trainable(!frozen);
    let variable = note(name, variable.mixed(policy.compute_dtype())?, false)?;
    shards::cut(&variable)?;
    Ok(variable)
}

/// Makes a variable of the layer that is being built that is not trained and has no copy, such as running statistics.
///
/// # Errors
/// Memory that is full.
#[track_caller]
pub fn buffer(name: &str, shape: impl IntoShape, initializer: Initializer) -> Result<Variable> {
    let _line = plimsoll_tensor::at_callers_line();
    let shape = shape.into_shape()?;
    let made = with_owner(Owner::Parameters, || {
        initializer.tensor(shape, current_policy().variable_dtype(), Fans::of_elements(&shape))
    })?;
    note(name, Variable::new(made).named(&full_name(name)).trainable(false), true)
}

/// Makes a variable that there is already one of the layer that is being built, under a name in it: it is trained, saved and
/// listed with the model, and stays where it lies. One that is not trainable now counts as a buffer, which
/// [`Model::set_trainable`] leaves alone.
pub fn adopt_variable(name: &str, variable: &Variable) {
    let (is_frozen, is_buffer) = (
        FRAMES.with_borrow(|frames| frames.last().is_some_and(|frame| frame.frozen)),
        !variable.is_trainable(),
    );
    let variable = variable.clone().named(&full_name(name));
    let variable = if is_frozen { variable.trainable(false) } else { variable };
    note_variable(name, &variable, is_buffer);
}

fn full_name(name: &str) -> String {
    match current_scope() {
        path if path.is_empty() => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

fn note(name: &str, variable: Variable, is_buffer: bool) -> Result<Variable> {
    note_variable(name, &variable, is_buffer);
    Ok(variable)
}

fn note_variable(name: &str, variable: &Variable, is_buffer: bool) {
    FRAMES.with_borrow_mut(|frames| {
        if let Some(frame) = frames.last_mut() {
            let (name, variable) = (name.to_owned(), variable.clone());
            frame.variables.push(OwnVariable { name, variable, is_buffer });
        }
    });
}
