// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

const pictureWidth, pictureHeight = 1440, 900

// picture is an image in docs/guide/page. It is taken when the view shows everything in shows. DESIGN.md says how.
type picture struct {
	name, hash, theme string
	in                []string // the documents that show it
	shows             []string
}

func pictures() []picture {
	const guide, readme = "docs/guide/page.md", "README.md"
	return []picture{
		{"overview", "#/", "light", []string{guide, readme}, []string{"heading: Overview", "StaticText: Live",
			"link: 3 agents not up to date", "heading: Recent warnings", "StaticText: API server unhealthy"}},
		{"overview-dark", "#/", "dark", []string{readme}, []string{"heading: Overview", "StaticText: Live",
			"heading: Recent warnings", "StaticText: API server unhealthy"}},
		{"cluster-light", "#/clusters/retail/eu-west-07", "light", []string{guide}, []string{"heading: eu-west-07",
			"StaticText: Live", "button: Delete the cluster", "button: Edit labels", "link: containerd-2-2"}},
		{"plans-dark", "#/plans/retail/containerd-2-2", "dark", []string{guide}, []string{"heading: containerd-2-2",
			"StaticText: Live", "button: Pause", "button: Try failed nodes again", "StaticText: E: no space left on device"}},
	}
}

// TestTheViewsInPicturesOfTheGuide shows each view that has a picture, and takes the picture if DROVER_SCREENSHOTS is
// set.
func TestTheViewsInPicturesOfTheGuide(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 0)
	fetched(f)
	p := chromium.Open(t, true)
	p.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": pictureWidth, "height": pictureHeight,
		"deviceScaleFactor": 1, "mobile": false}, nil)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview")
	realistic(f)
	eventually(t, p, `document.querySelector(".figure")?.textContent`, "140")
	for _, picture := range pictures() {
		p.Scheme(picture.theme)
		at(p, picture.hash)
		sees(t, p, picture.shows...)
		p.Evaluate(painted, nil)
		p.Shot(picture.name)
	}
}

func TestThePicturesOfTheGuideExistAndAreShown(t *testing.T) {
	folder := testkit.Path(t, "docs/guide/page")
	shown := map[string]bool{} // files that the documents show
	for document, pattern := range map[string]string{
		"docs/guide/page.md": `!\[[^\]]+\]\(page/([^)]+)\)`,
		"README.md":          `(?:src|srcset)="docs/guide/page/([^"]+)"`,
	} {
		text, err := os.ReadFile(testkit.Path(t, document))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			shown[document+" shows "+match[1]] = true
		}
	}
	known := map[string]bool{}
	for _, picture := range pictures() {
		file := picture.name + ".png"
		known[file] = true
		for _, document := range picture.in {
			if !shown[document+" shows "+file] {
				t.Errorf("%s does not show docs/guide/page/%s, want the picture there", document, file)
			}
		}
		image, err := os.Open(filepath.Join(folder, file))
		if err != nil {
			t.Errorf("the picture does not exist, want it to be written as DESIGN.md says: %v", err)
			continue
		}
		config, err := png.DecodeConfig(image)
		_ = image.Close()
		if err != nil || config.Width != pictureWidth || config.Height != pictureHeight {
			t.Errorf("%s has %d x %d points (%v), want %d x %d, as the test writes it", file, config.Width, config.Height, err,
				pictureWidth, pictureHeight)
		}
	}
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !known[file.Name()] {
			t.Errorf("no test writes docs/guide/page/%s, want only pictures that a test writes", file.Name())
		}
	}
}
