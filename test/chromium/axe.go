// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package chromium

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-dev/drover/test/testkit"
)

// Scheme sets the color scheme that the page detects, "light" or "dark", like the system's setting.
func (p *Page) Scheme(name string) {
	p.t.Helper()
	p.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// Axe returns the violations that axe-core finds on the page, each with its elements. The test, which may be a subtest,
// is skipped if npm has not installed axe-core in test/axe.
func (p *Page) Axe(t testing.TB) []string {
	t.Helper()
	script, err := os.ReadFile(testkit.Path(t, "test/axe/node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Skip(`axe-core is not installed: run "npm ci" in test/axe`)
	}
	p.Evaluate(string(script), nil)
	var violations []string
	p.Evaluate(`axe.run().then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html).join(" ")))`, &violations)
	return violations
}

// Screenshot saves an image of the page in the folder given by DROVER_SCREENSHOTS, if it is set.
func (p *Page) Screenshot(name string, width, height int) {
	p.t.Helper()
	if os.Getenv("DROVER_SCREENSHOTS") == "" {
		return
	}
	p.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	p.Evaluate(`new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))`, nil)
	p.Shot(name)
	p.Call("Emulation.clearDeviceMetricsOverride", nil, nil)
}

// Shot saves an image of the page at its current size in the folder given by DROVER_SCREENSHOTS, if it is set.
func (p *Page) Shot(name string) {
	p.t.Helper()
	folder := os.Getenv("DROVER_SCREENSHOTS")
	if folder == "" {
		return
	}
	var shot struct{ Data string }
	p.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	image, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), image, 0o644); err != nil {
		p.t.Fatal(err)
	}
}
