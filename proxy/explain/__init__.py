"""Why a connection goes where it goes: the tables' own rules, run on one packet, and the policies behind them."""
