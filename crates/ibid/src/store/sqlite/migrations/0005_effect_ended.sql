-- When the last call of an effect was over with nobody knowing the outcome: "not executed" counts only of an instant
-- well after it. Effects that are unknown by now have none, so nothing said about them frees them.
alter table ibid_effect add column ended_at integer;
