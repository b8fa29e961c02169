//! Effects on the outside, such as a charge, that no retry repeats.
//!
//! [`Ctx::effect`](crate::Ctx::effect) records the intent before the call and the result after it;
//! [`Ctx::once`](crate::Ctx::once) makes a call at most once.
//!
//! ```
//! use quell::{Ctx, TaskError};
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Order { cents: u64 }
//! # impl quell::Task for Order { const NAME: &'static str = "order"; type Output = (); }
//! # async fn charge(_: u64, _: &str) -> std::io::Result<String> { Ok("ch_1".into()) }
//!
//! async fn order(order: Order, ctx: Ctx<()>) -> Result<(), TaskError> {
//!     let call = ctx.effect("charge");
//!     let charge: String =
//!         call.run(|key| async move { Ok(charge(order.cents, key.as_str()).await?) }).await?;
//!     assert_eq!(charge, "ch_1");
//!     Ok(())
//! }
//! ```

pub use quell_core::EffectName;
pub use quell_core::effect::{Effect, MAX_EFFECTS, MAX_RESULT_BYTES};

pub use crate::handler::effects::{EffectCall, OnceCall, Unverified, Verify};
