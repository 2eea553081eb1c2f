package overlay

// RemoveRoutes removes the routes to pods of other nodes, on a machine on which no Overlay runs.
func RemoveRoutes() error {
	_, err := plan{}.applyRoutes(0)
	return err
}

// RemoveDevice removes an interface to pods of other nodes, if there is one.
func RemoveDevice(name string) error {
	_, err := removeDevice(name)
	return err
}
