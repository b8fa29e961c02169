//! A form that was refused: it is shown again with what was typed, and with the reason at its field.

use axum::http::StatusCode;
use minijinja::context;
use minijinja::value::Value as Shown;

use crate::api::Reply;
use crate::form::Fields;
use crate::text;

/// What was typed, and what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    pub(super) given: Fields,
    pub(super) status: StatusCode,
    field: String,
    message: String,
}

impl Typed {
    /// A field that these pages cannot read.
    pub(super) fn wrong(given: &Fields, field: &str, message: &str) -> Self {
        let (field, message) = (field.to_owned(), message.to_owned());
        Typed { given: given.clone(), status: StatusCode::UNPROCESSABLE_ENTITY, field, message }
    }

    /// What the API refused of a form; none of an answer that is about something else, such as a scope.
    pub(super) fn refused(given: &Fields, reply: &Reply) -> Option<Self> {
        let is_about_it = matches!(
            reply.status,
            StatusCode::BAD_REQUEST
                | StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::CONFLICT
        );
        let problem = reply.problem();
        let field = problem.field.filter(|_| is_about_it)?;
        let message = text::sentence(&problem.message);
        Some(Typed { given: given.clone(), status: reply.status, field, message })
    }

    /// What a template has of it. A field that is none of the form is named above all of them.
    pub(super) fn problem(&self, fields: &[&str]) -> Shown {
        // A member of a field belongs to the field: `rate.period`.
        let own = self.field.split(['.', '[']).next().unwrap_or_default();
        let field = fields.contains(&own).then_some(own);
        let message = match field {
            Some(_) => self.message.clone(),
            None => format!("{}: {}", self.field, self.message),
        };
        context! { field, message }
    }
}
