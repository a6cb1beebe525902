// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// formerCommit is used as the previous minor version until there are releases. It is the last commit before the plugin
// stored its hub and the manager applied the built-in role templates. So it differs from the current sources in what
// users run and in what a hub installs. All names in the API are already those of v0.1.0.
const formerCommit = "91fec486980a0475f79dd1287a59dac1d6b35a52"

// predecessor returns the revision of the previous minor version: its newest release, or formerCommit if there is no
// release. described is the output of "git describe --tags" for these sources, or empty. Sources after a tag belong to
// the next minor version.
func predecessor(described string, tags []string) string {
	found := formerCommit
	this, err := version.ParseSemantic(described)
	if err != nil {
		return found
	}
	minor := version.MajorMinor(this.Major(), this.Minor())
	if !slices.Contains(tags, described) {
		minor = version.MajorMinor(this.Major(), this.Minor()+1)
	}
	var newest *version.Version
	for _, tag := range tags {
		release, err := version.ParseSemantic(tag)
		if err != nil || release.PreRelease() != "" || !release.LessThan(minor) {
			continue
		}
		if newest == nil || newest.LessThan(release) {
			found, newest = tag, release
		}
	}
	return found
}

func TestThePredecessorIsThePreviousMinorVersion(t *testing.T) {
	releases := []string{"v0.1.0", "v0.1.10", "v0.1.9", "v0.2.0-rc.1", "v0.2.0", "v0.3.0", "v1.0.0", "nightly"}
	for _, c := range []struct {
		name, described string
		tags            []string
		want            string
	}{
		{"there is no tag", "", nil, formerCommit},
		{"the first release", "v0.1.0", []string{"v0.1.0"}, formerCommit},
		{"after the first release", "v0.1.0-12-g0123abc", []string{"v0.1.0"}, "v0.1.0"},
		{"a later patch release of the first minor version", "v0.1.1", []string{"v0.1.0", "v0.1.1"}, formerCommit},
		{"before any release, after a release candidate", "v0.1.0-rc.1-3-g0123abc", []string{"v0.1.0-rc.1"}, formerCommit},
		{"the newest patch of the previous minor version", "v0.2.0", releases, "v0.1.10"},
		{"a release candidate", "v0.2.0-rc.1", releases, "v0.1.10"},
		{"after a release, with newer releases of other branches", "v0.2.0-1-g0123abc", releases, "v0.2.0"},
		{"the first release of a major version", "v1.0.0", releases, "v0.3.0"},
		{"a tag that is not a version", "nightly-1-g0123abc", releases, formerCommit},
	} {
		if got := predecessor(c.described, c.tags); got != c.want {
			t.Errorf("%s: the predecessor of %q is %s, want %s", c.name, c.described, got, c.want)
		}
	}
}

// former returns the revision to compare with, and a folder with its sources. The test is skipped if the clone does not
// contain the revision.
func former(t *testing.T, root string) (revision, dir string) {
	t.Helper()
	git := func(args ...string) ([]byte, error) {
		return exec.CommandContext(t.Context(), "git", append([]string{"-C", root}, args...)...).Output()
	}
	described, _ := git("describe", "--tags") // it fails without tags
	tags, err := git("tag", "--list")
	if err != nil {
		t.Skipf("these sources are not in a clone of the Git repository: %v", err)
	}
	revision = predecessor(strings.TrimSpace(string(described)), strings.Fields(string(tags)))
	if _, err := git("cat-file", "-e", revision+"^{commit}"); err != nil {
		t.Skipf("the clone lacks the former version %s: get it with \"git fetch --unshallow --tags\"", revision)
	}
	archive, err := git("archive", "--format=tar", revision)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	extract := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	extract.Stdin = bytes.NewReader(archive)
	if out, err := extract.CombinedOutput(); err != nil {
		t.Fatalf("extract %s: %v\n%s", revision, err, out)
	}
	return revision, dir
}

// release contains the programs of one version.
type release struct {
	framework.Programs
	// version is the version that the programs report. image is the image that managers use for agents.
	version, image string
	// dir contains the programs.
	dir string
}

// build builds all programs of the sources at root.
func build(ctx context.Context, root, dir, version string) (release, error) {
	assets, err := lab.Binaries(ctx, os.Stderr)
	if err != nil {
		return release{}, err
	}
	r := release{version: version, image: "registry.test/drover:" + version, dir: dir}
	r.Programs = framework.Programs{Root: root, Kubectl: assets[lab.Kubectl],
		Manager: filepath.Join(dir, "manager"), Agent: filepath.Join(dir, "drover-agent")}
	for binary, source := range map[string]string{
		r.Manager: ".", r.Agent: "./agent", r.program("kubectl-drover"): "./cmd/kubectl-drover",
		r.program("drover-host-agent"): "./cmd/drover-host-agent",
	} {
		command := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w -X main.version="+version, "-o", binary, source)
		command.Dir = root
		if out, err := command.CombinedOutput(); err != nil {
			return release{}, fmt.Errorf("build %s of %s: %w\n%s", source, version, err, out)
		}
	}
	return r, nil
}

func (r release) program(name string) string { return filepath.Join(r.dir, name) }

// has reports whether the plugin has the commands of a folder.
func (r release) has(folder string) bool {
	_, err := os.Stat(filepath.Join(r.Root, "cmd", "kubectl-drover", folder))
	return err == nil
}
