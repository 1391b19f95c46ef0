"""The spine: tasks, leases, frames and wakes, which every primitive stands on."""
