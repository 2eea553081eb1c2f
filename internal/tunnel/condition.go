package tunnel

// Condition is the type of the condition in a joined Node that is True while it has no tunnel.
const Condition = "TunnelUnavailable"
