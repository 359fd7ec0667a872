//! Control buffers on further devices, for variables that are not all on one.
//!
//! An op reads what is on its device. So each device with variables has copies of the control buffers, which begin every step
//! as the first device's are and are then changed by the same op. Checkpoints keep the first device's alone.

use plimsoll_tensor::{Device, Result, Variable};

use super::Optimizer;

/// The control buffers on a device that is not the first.
#[derive(Debug)]
pub(super) struct Replica {
    pub device: Device,
    /// That of the variables in no group, and those of the groups with a rate of their own.
    pub control: Variable,
    pub groups: Vec<Option<Variable>>,
}

impl Optimizer {
    /// Makes control buffers on the devices of variables that have none.
    pub(super) fn make_replicas(&mut self, variables: &[Variable]) -> Result<()> {
        for variable in variables {
            let device = variable.device();
            let has_some = self.control.as_ref().is_none_or(|control| control.device() == device)
                || self.replicas.iter().any(|replica| replica.device == device);
            if has_some {
                continue;
            }
            let _there = device.enter();
            let control = self.new_control(self.rate, "optimizer.control")?;
            let group = |group: &super::ParameterGroup| {
                group.rate.map(|rate| self.new_control(rate, "optimizer.control")).transpose()
            };
            let groups = self.groups.iter().map(group).collect::<Result<_>>()?;
            self.replicas.push(Replica { device, control, groups });
        }
        Ok(())
    }

    /// Has the control buffers on further devices begin a step as those of the first.
    pub(super) fn copy_controls(&self) -> Result<()> {
        for replica in &self.replicas {
            let copies =
                std::iter::once(Some(&replica.control)).chain(replica.groups.iter().map(Option::as_ref));
            let firsts = std::iter::once(self.control.as_ref());
            let firsts = firsts.chain(self.group_controls.iter().map(Option::as_ref));
            for (first, copy) in firsts.zip(copies) {
                if let (Some(first), Some(copy)) = (first, copy) {
                    copy.assign(&first.value().to_device(&replica.device)?)?;
                }
            }
        }
        Ok(())
    }
}
