//! Reads the position, city, carrier and country of every agent.

use sqlx::PgConnection;

use crate::model::AgentId;
use crate::model::geo::Position;
use crate::store::rows::Rows;
use crate::store::{Error, position};

#[derive(Debug, Clone, PartialEq)]
pub struct AgentPosition {
    pub agent: AgentId,
    pub name: String,
    pub position: Option<Position>,
}

/// The positions of all agents, including removed ones.
pub async fn positions(conn: &mut PgConnection) -> Result<Vec<AgentPosition>, Error> {
    let rows = sqlx::query!("select id, name, latitude, longitude from agents").all(conn).await?;
    let located = rows.into_iter().map(|row| {
        let position = position("agents", row.latitude, row.longitude)?;
        Ok(AgentPosition { agent: row.id, name: row.name, position })
    });
    located.collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPlace {
    pub agent: AgentId,
    pub city: String,
    pub carrier: String,
    pub country: String,
}

/// The city, carrier and country of all agents, including removed ones.
pub async fn places(conn: &mut PgConnection) -> Result<Vec<AgentPlace>, Error> {
    sqlx::query_as!(AgentPlace, "select id as agent, city, carrier, country from agents").all(conn).await
}
