//! ZeRO: what a model needs besides its activations, cut into shards, one for each rank.
//!
//! Every rank has a *piece* of each variable: some of its elements, in full precision, as a variable of its own ([`Shards`] says
//! which). The optimizer knows these pieces and nothing else, so its state is cut with them, and so are the sums of gradients that it
//! is given. Optimizers that treat every element by itself do the same to pieces as to whole variables, so the bits are those of
//! whole ones; others are refused.
//!
//! At stages 1 and 2 the model's variables are whole on every rank, and the pieces of all ranks are gathered into them after the
//! update, in place. At stage 2 the gradients of a rank's last leaf are summed over all ranks while its backward runs. At stage 3 the
//! model's variables have no value of their own: the programs that read them gather them where they do.
//!
//! Variables are cut when a trainer begins, or, inside [`with_strategy`], as soon as each is made, so that a model can be built that no
//! rank has room for.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_dist::{Communicator, Shards, Strategy, gather_op, gather_rows, gather_update, peers};
use plimsoll_tensor::optimizer::{NORM_CHUNK, norm_of_square_sums, square_sums};
use plimsoll_tensor::program::Peers;
use plimsoll_tensor::{
    DType, Error, GatheredVariable, OpRef, Owner, Piece, Result, Shape, Tensor, Variable, with_owner,
};
use sha2::{Digest, Sha256};

/// The most variables that one op fills: see `optimizers::state`.
const VARIABLES_OF_AN_OP: usize = 64;
/// The bytes of a variable that are brought together at a time, outside a step.
const MESSAGE_BYTES: usize = 1 << 20;

/// The shards of a model's trained variables.
pub(crate) struct Zero {
    communicator: Arc<dyn Communicator>,
    stage: usize,
    shards: Shards,
    /// The variables that are cut, as the model has them,
    variables: Vec<Variable>,
    /// and this rank's piece of each.
    pieces: Vec<Variable>,
    /// The checksum of their values when they were cut, by which ranks see that they begin alike.
    checksum: Sha256,
}

impl Zero {
    /// Nothing is cut yet; nothing at all where every rank has everything, as a single one does at every stage.
    ///
    /// # Errors
    /// A stage that there is not.
    pub fn of(strategy: &Strategy) -> Result<Option<Zero>> {
        let (stage, communicator) = (strategy.zero_stage()?, strategy.communicator().clone());
        if stage == 0 || communicator.size() == 1 {
            return Ok(None);
        }
        let shards = Shards::new(communicator.size());
        let (variables, pieces, checksum) = (Vec::new(), Vec::new(), Sha256::new());
        Ok(Some(Zero { communicator, stage, shards, variables, pieces, checksum }))
    }

    /// Whether this is what a strategy wants.
    pub fn is_of(&self, strategy: &Strategy) -> Result<bool> {
        let communicator = strategy.communicator();
        let ranks = (communicator.rank(), communicator.size(), strategy.zero_stage()?);
        Ok(ranks == (self.communicator.rank(), self.communicator.size(), self.stage))
    }

    /// Cuts the variables that are not cut yet. A master is given back: its pieces are what is updated.
    pub fn cover(&mut self, variables: &[Variable]) -> Result<()> {
        for variable in variables {
            if self.covers(variable) {
                continue;
            }
            let device = variable.device();
            let _there = device.enter();
            self.shards.push(variable.n_elems());
            let number = self.variables.len();
            let range = self.shards.piece(number, self.communicator.rank());
            let whole = variable.master().unwrap_or(variable);
            if !device.is_ghost() {
                whole.value().with_bytes(|bytes| self.checksum.update(bytes))?;
            }
            let copied = || whole.value().flatten()?.narrow(0, range.start, range.len())?.copied();
            let owner = if self.stage < 3 { Owner::Optimizer } else { Owner::Parameters };
            let piece = whole.in_its_layer(|| with_owner(owner, copied))?;
            let piece = Variable::new(piece).owned_by(owner).named(&variable.name());
            self.pieces.push(piece);
            self.variables.push(variable.clone());
            if let Some(master) = variable.master() {
                master.give_up_value();
            }
            if self.stage == 3 {
                variable.give_up_value();
            }
        }
        Ok(())
    }

    /// The ranks, and how variables are cut.
    pub fn ranks(&self) -> (&Arc<dyn Communicator>, &Shards) {
        (&self.communicator, &self.shards)
    }

    /// The number of a variable among those that are cut, and this rank's piece of it.
    pub fn piece(&self, variable: &Variable) -> Option<(usize, &Variable)> {
        let number = self.variables.iter().position(|known| known == variable)?;
        Some((number, &self.pieces[number]))
    }

    /// The number of the variable of that name among those that are cut, and its shape.
    pub fn named(&self, name: &str) -> Option<(usize, Shape)> {
        let number = self.variables.iter().position(|known| known.name() == name)?;
        Some((number, *self.variables[number].shape()))
    }

    /// Whether a variable is cut.
    pub fn covers(&self, variable: &Variable) -> bool {
        self.variables.contains(variable)
    }

    /// The checksum of the values that variables had when they were cut.
    pub fn checksum(&self) -> String {
        self.checksum.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The numbers of variables among those that are cut.
    fn numbers(&self, variables: &[Variable]) -> Vec<usize> {
        let number = |variable: &Variable| self.variables.iter().position(|known| known == variable);
        variables.iter().filter_map(number).collect()
    }

    /// This rank's pieces of variables: what the optimizer updates.
    pub fn pieces(&self, variables: &[Variable]) -> Vec<Variable> {
        self.numbers(variables).into_iter().map(|number| self.pieces[number].clone()).collect()
    }

    /// How variables are cut, and their numbers there.
    pub fn cut(&self, variables: &[Variable]) -> (&Shards, Vec<usize>) {
        (&self.shards, self.numbers(variables))
    }

    /// The global norm of gradients, and the first that is not finite, from this rank's pieces of them.
    pub fn norm(&self, pieces: &[Tensor], variables: &[Variable]) -> Result<(Tensor, Tensor)> {
        let rows = square_sums(&pieces.iter().collect::<Vec<_>>())?;
        let n_rows = |n_elems: usize| n_elems.div_ceil(NORM_CHUNK);
        let rows = gather_rows(&self.communicator, &rows, &self.shards, &self.numbers(variables), n_rows)?;
        norm_of_square_sums(&rows, pieces.iter().any(|piece| piece.dtype() == DType::F64))
    }

    /// Whether gradients are summed over all ranks while backward runs.
    pub fn sums_in_backward(&self) -> bool {
        self.stage >= 2
    }

    /// Whether programs bring the model's variables together where they read them.
    pub fn gathers_parameters(&self) -> bool {
        self.stage == 3
    }

    /// The ranks with which programs that do so are planned.
    pub fn peers(&self) -> Option<Arc<dyn Peers>> {
        self.gathers_parameters().then(|| peers(&self.communicator, true))
    }

    /// The variables that have no value of their own, and how programs make it.
    pub fn gathered(&self) -> Vec<GatheredVariable> {
        let gathered = |(number, (variable, piece)): (usize, (&Variable, &Variable))| GatheredVariable {
            variable: variable.clone(),
            from: piece.clone(),
            gather: gather_op(
                &self.communicator,
                (&self.shards, number),
                (*variable.shape(), variable.dtype()),
            ),
        };
        let all = self.variables.iter().zip(&self.pieces).enumerate();
        if self.gathers_parameters() { all.map(gathered).collect() } else { Vec::new() }
    }

    /// The updates that fill the model's variables from the pieces of all ranks: ops, each with its variables.
    pub fn gathers(&self, variables: &[Variable]) -> Vec<(OpRef, Vec<Variable>)> {
        if self.gathers_parameters() {
            return Vec::new();
        }
        let numbers = self.numbers(variables);
        let dtypes = |number: usize| (self.variables[number].dtype(), self.pieces[number].dtype());
        let alike = numbers.chunk_by(|&one, &other| dtypes(one) == dtypes(other));
        let of_op = |numbers: &[usize]| {
            let whole = numbers.iter().map(|&number| self.variables[number].clone());
            let own = numbers.iter().map(|&number| self.pieces[number].clone());
            (gather_update(&self.communicator, &self.shards, numbers), whole.chain(own).collect())
        };
        alike.flat_map(|numbers| numbers.chunks(VARIABLES_OF_AN_OP)).map(of_op).collect()
    }

    /// Fills the variables that ranks have whole from the pieces of all ranks, outside a step.
    pub fn fill(&self) -> Result<()> {
        if self.pieces.iter().any(|piece| piece.device().is_ghost()) {
            return Ok(());
        }
        for (op, variables) in self.gathers(&self.variables) {
            Variable::update(op, &variables.iter().collect::<Vec<_>>(), &[])?;
        }
        Ok(())
    }

    /// Gives `f` the bytes of a variable in full precision, one message after the other, from the pieces that all ranks have: all call
    /// it for the same variables in the same order.
    pub fn with_whole_bytes(&self, variable: &Variable, f: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let Some(number) = self.variables.iter().position(|known| known == variable) else {
            return Ok(false);
        };
        let piece = self.pieces[number].value();
        let size = piece.dtype().size();
        let n_bytes = (variable.n_elems() * size).min(MESSAGE_BYTES);
        let mut message = Piece::acquire(&piece.device().host(), n_bytes, "message")?;
        for (rank, range) in self.shards.pieces(number) {
            let mut pass_on = |own: Option<&[u8]>| {
                for start in (0..range.len() * size).step_by(MESSAGE_BYTES) {
                    let end = (start + MESSAGE_BYTES).min(range.len() * size);
                    let message = &mut message.bytes_mut()[..end - start];
                    if let Some(own) = own {
                        message.copy_from_slice(&own[start..end]);
                    }
                    self.communicator.broadcast_from(rank, message)?;
                    f(message);
                }
                Ok::<(), Error>(())
            };
            match rank == self.communicator.rank() {
                true => piece.with_bytes(|own| pass_on(Some(own)))??,
                false => pass_on(None)?,
            }
        }
        Ok(true)
    }
}

/// The variables that are cut inside a scope, for the trainer that will train them.
pub(crate) type Cut = Arc<Mutex<Option<Zero>>>;

thread_local!(static OPEN: RefCell<Vec<Cut>> = const { RefCell::new(Vec::new()) });

/// Runs `f` with variables of layers cut into shards as soon as they are made, if the strategy has stages of ZeRO: every rank then
/// builds the same model, and has no more of it than its pieces and the variable that is being made. The model is then trained
/// with that strategy.
///
/// ```
/// use plimsoll_dist::{Strategy, local};
/// use plimsoll_nn::{Layer, layers::Dense, with_strategy};
///
/// let strategy = Strategy::data_parallel(local::alone()).zero(3);
/// let model = with_strategy(&strategy, || Dense::new(1).build([3]))?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// Those of `f`; a stage that there is not.
#[doc(alias = "strategy.scope")]
pub fn with_strategy<R>(strategy: &Strategy, f: impl FnOnce() -> Result<R>) -> Result<R> {
    /// Ends the scope also if `f` panics.
    struct Open(usize);
    impl Drop for Open {
        fn drop(&mut self) {
            OPEN.with_borrow_mut(|open| open.truncate(self.0));
        }
    }
    let cut = Arc::new(Mutex::new(Zero::of(strategy)?));
    let _open = OPEN.with_borrow_mut(|open| {
        open.push(cut);
        Open(open.len() - 1)
    });
    f()
}

/// What is cut inside the innermost open scope.
pub(crate) fn current_cut() -> Option<Cut> {
    OPEN.with_borrow(|open| open.last().cloned())
}

/// Cuts a variable that has just been made, inside a scope.
pub(crate) fn cut(variable: &Variable) -> Result<()> {
    let Some(cut) = current_cut() else { return Ok(()) };
    let mut cut = cut.lock().unwrap_or_else(PoisonError::into_inner);
    cut.as_mut().map_or(Ok(()), |zero| zero.cover(std::slice::from_ref(variable)))
}

/// Takes what was cut while a model was built.
pub(crate) fn take(cut: Option<&Cut>) -> Option<Zero> {
    cut.and_then(|cut| cut.lock().unwrap_or_else(PoisonError::into_inner).take())
}
