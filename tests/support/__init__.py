"""What the tests share: the judge, custom operators of every kind, and passes that do harm if they can."""
