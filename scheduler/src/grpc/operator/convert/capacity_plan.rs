//! Converts and validates the messages of `landfall plan`.

use std::time::Duration;

use landfall_proto::v1;

use crate::capacity::{Agent, AgentChange, FleetPrediction, Load};
use crate::grpc::capacity_plan::{Addition, Plan, WhatIfRequest};
use crate::model::Strategy;

use super::{InvalidField, agent_name, duration, line, sites, whole};

/// Maximum number of agents to add in a plan.
const MOST_ADDED: usize = 100;
/// Maximum number of agents to remove in a plan. No fleet has more agents.
const MOST_REMOVED: usize = 100_000;
/// Maximum number of places to suggest for new agents.
const MOST_SUGGESTED: u32 = 20;
/// The valid numbers of slots for an agent. The database's schema has the same bounds.
const SLOTS: std::ops::RangeInclusive<u32> = 1..=10_000;

impl TryFrom<v1::PlanRequest> for WhatIfRequest {
    type Error = InvalidField;

    fn try_from(request: v1::PlanRequest) -> Result<Self, InvalidField> {
        let v1::PlanRequest { add, remove, strategy, suggest } = request;
        if add.len() > MOST_ADDED {
            return Err(InvalidField::new(
                "add",
                format!("{} agents, but at most {MOST_ADDED} can be added", add.len()),
            ));
        }
        if remove.len() > MOST_REMOVED {
            let problem = format!("{} agents, but at most {MOST_REMOVED} can be removed", remove.len());
            return Err(InvalidField::new("remove", problem));
        }
        if suggest > MOST_SUGGESTED {
            let problem = format!("{suggest} places, but at most {MOST_SUGGESTED} can be suggested");
            return Err(InvalidField::new("suggest", problem));
        }
        let strategy = match strategy {
            none if none.is_empty() => Strategy::default(),
            given => given.parse().map_err(InvalidField::of("strategy"))?,
        };
        Ok(Self {
            add: add.into_iter().map(Addition::try_from).collect::<Result<_, _>>()?,
            remove,
            strategy,
            suggest: usize::try_from(suggest).unwrap_or(usize::MAX),
        })
    }
}

impl TryFrom<v1::PlannedAddition> for Addition {
    type Error = InvalidField;

    fn try_from(addition: v1::PlannedAddition) -> Result<Self, InvalidField> {
        let v1::PlannedAddition { name: given, city, carrier, near, slots } = addition;
        if let Some(slots) = slots.filter(|slots| !SLOTS.contains(slots)) {
            let problem = format!("must be {} to {}, not {slots}", SLOTS.start(), SLOTS.end());
            return Err(InvalidField::new("slots", problem));
        }
        Ok(Self {
            name: (!given.is_empty()).then(|| agent_name("name", &given)).transpose()?,
            city: line("city", &city)?,
            carrier: line("carrier", &carrier)?,
            near: line("near", &near)?,
            slots,
        })
    }
}

impl From<Plan> for v1::PlanResponse {
    fn from(plan: Plan) -> Self {
        let suggestions = plan.suggested.iter().flat_map(|suggested| &suggested.picks).zip(plan.picked);
        let suggestions = suggestions.map(|(pick, picked)| v1::PlannedSuggestion {
            near: picked.name,
            position: picked.position.map(sites::globe_position),
            gain: Some(millis(pick.gain_ms)),
            mean: Some(millis(pick.mean_ms)),
            share: pick.share,
        });
        let (before, after) = (&plan.compared.before, &plan.compared.after);
        let loads = before.loads.iter().zip(&after.loads);
        Self {
            epoch: plan.located.epoch.get(),
            strategy: plan.strategy.to_string(),
            sites: whole(plan.sites),
            sites_elsewhere: plan.located.elsewhere,
            sites_in_several_places: plan.suspects,
            sites_of_known_size: whole(plan.known),
            usual_pages: plan.usual.0,
            usual_bytes: plan.usual.1,
            before: Some(outlook(before, &plan.agents)),
            after: Some(outlook(after, &plan.agents)),
            suggestions: suggestions.collect(),
            agents: plan
                .agents
                .iter()
                .zip(loads)
                .map(|(agent, (before, after))| planned(agent, *before, *after))
                .collect(),
            left_out: plan
                .left_out
                .into_iter()
                .map(|(name, why)| v1::LeftOutAgent { name, why: why.to_owned() })
                .collect(),
            sampled_sites: plan.suggested.as_ref().map_or(0, |suggested| whole(suggested.sample)),
            tried_places: plan.suggested.as_ref().map_or(0, |suggested| whole(suggested.candidates)),
        }
    }
}

fn outlook(outlook: &FleetPrediction, agents: &[Agent]) -> v1::PlannedOutlook {
    let busy = agents.iter().zip(&outlook.loads).filter_map(|(agent, load)| Some((load.as_ref()?.busy, agent)));
    let longest = busy.max_by_key(|(busy, _)| *busy).map(|(_, agent)| agent.name.clone());
    v1::PlannedOutlook {
        mean: Some(millis(outlook.mean_ms)),
        makespan: Some(duration(outlook.makespan)),
        longest: longest.unwrap_or_default(),
    }
}

fn planned(agent: &Agent, before: Option<Load>, after: Option<Load>) -> v1::PlannedAgent {
    let change = match agent.change {
        AgentChange::Stays => "stays",
        AgentChange::Comes => "added",
        AgentChange::Leaves => "removed",
    };
    let load = |load: Load| v1::PlannedLoad {
        sites: load.sites,
        share: load.share,
        work: Some(duration(load.work)),
        busy: Some(duration(load.busy)),
    };
    v1::PlannedAgent {
        name: agent.name.clone(),
        city: agent.city.clone(),
        carrier: agent.carrier.clone(),
        slots: agent.slots,
        change: change.to_owned(),
        before: before.map(load),
        after: after.map(load),
    }
}

fn millis(millis: f64) -> prost_types::Duration {
    duration(Duration::try_from_secs_f64(millis / 1e3).unwrap_or_default())
}
