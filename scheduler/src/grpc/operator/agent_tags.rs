//! Changes the tags of an agent.

use sqlx::PgPool;
use tonic::Status;

use crate::model::constraints;
use crate::store::{self, agents};

use super::convert::InvalidField;
use super::named;

/// Adds and removes tags of the agent with this name. Returns the agent's new tags.
pub(super) async fn change(
    pool: &PgPool,
    name: &str,
    add: &[String],
    remove: &[String],
) -> Result<Vec<String>, Status> {
    let add = tags("add", add)?;
    let remove = tags("remove", remove)?;
    let mut tx = store::begin(pool).await?;
    let found = agents::lock_tags(&mut tx, name).await?;
    let Some((agent, tags)) = found else { return Err(named::no_agent(&mut tx, name).await) };
    let tags = retagged(tags, add, &remove)?;
    agents::set_tags(&mut tx, agent, &tags).await?;
    store::commit(tx).await?;
    Ok(tags)
}

/// Adds the tags `add` and removes the tags `remove`; rejects a tag that is in both.
fn retagged(mut tags: Vec<String>, add: Vec<String>, remove: &[String]) -> Result<Vec<String>, InvalidField> {
    if let Some(both) = add.iter().find(|tag| remove.contains(tag)) {
        return Err(InvalidField::new("remove", format!("the tag '{both}' cannot be both added and removed")));
    }
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add);
    self::tags("add", &tags)
}

/// Parses an agent's tags into their canonical form.
pub(super) fn tags(field: &str, asked: &[String]) -> Result<Vec<String>, InvalidField> {
    constraints::tags(asked).map_err(|error| InvalidField::new(field, error.problem))
}
