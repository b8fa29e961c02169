//! Recorded effects as the memory store keeps them (R23).

use super::state::State;
use crate::effect::{self, EffectStart};
use crate::{Effect, EffectName, JobId, Key, Lease, Payload, Result};

impl State {
    pub(super) fn begin_effect(
        &mut self,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart> {
        let now = self.now();
        effect::check_lease(now, lease, self.job(lease.job))?;
        let known = self.effects.get(&lease.job);
        let effects = known.map_or(0, |effects| effects.len());
        let known = known.and_then(|effects| effects.get(name));
        let intent = Effect::intended(now, lease.token, name, key);
        let begun = intent.begin(lease.job, known, effects)?;
        if known.is_none() {
            self.effects.entry(lease.job).or_default().insert(name.clone(), intent);
        }
        Ok(begun)
    }

    pub(super) fn end_effect(
        &mut self,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        effect::check_result(name, result)?;
        let now = self.now();
        effect::check_lease(now, lease, self.job(lease.job))?;
        let known = self.effects.get(&lease.job).and_then(|effects| effects.get(name)).cloned();
        if let Some(ended) = effect::end(now, lease, name, known, result)? {
            self.effects.entry(lease.job).or_default().insert(name.clone(), ended);
        }
        Ok(())
    }

    /// Takes in the effects of an imported job.
    pub(super) fn take_effects(&mut self, id: JobId, effects: &[Effect]) {
        if !effects.is_empty() {
            let by_name = effects.iter().map(|effect| (effect.name.clone(), effect.clone()));
            self.effects.insert(id, by_name.collect());
        }
    }

    pub(super) fn effects(&self, id: JobId) -> Vec<Effect> {
        self.effects.get(&id).map(|effects| effects.values().cloned().collect()).unwrap_or_default()
    }
}
