"""Does reink compute what eager computes, for a user's own function? `reink.verify` answers; its parts are here."""
