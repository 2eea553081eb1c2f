// Package manifests holds the addons that come inside the executable, one folder
// each. server/deploy applies them, with ${NAME} replaced.
package manifests

import "embed"

// FS holds ADDON/NAME.yaml.
//
//go:embed */*.yaml
var FS embed.FS
