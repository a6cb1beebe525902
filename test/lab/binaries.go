// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	envAssets     = "KUBEBUILDER_ASSETS"
	envNoDownload = "DROVER_LAB_NO_DOWNLOAD"
)

// Assets maps the names of programs to the paths of their binaries.
type Assets map[string]string

// EnvtestDir returns the folder that contains etcd, kube-apiserver and kubectl, for use as KUBEBUILDER_ASSETS. It
// returns an error if they are not in the same folder.
func (a Assets) EnvtestDir() (string, error) {
	var dir string
	for _, name := range envtestPrograms() {
		path, ok := a[name]
		if !ok {
			return "", fmt.Errorf("assets folder: %s was not asked for", name)
		}
		if dir != "" && dir != filepath.Dir(path) {
			return "", fmt.Errorf("assets folder: %s is in %s, others are in %s: unset %s, or put all of them there",
				name, filepath.Dir(path), dir, envAssets)
		}
		dir = filepath.Dir(path)
	}
	return dir, nil
}

func envtestPrograms() []string { return []string{Etcd, APIServer, Kubectl} }

// DefaultPrograms returns the programs of a control plane without nodes, and kubectl.
func DefaultPrograms() []string { return []string{Etcd, APIServer, ControllerManager, Kubectl} }

// Binaries returns the paths of the named programs, and downloads or builds the missing ones. If no names are given,
// it returns DefaultPrograms.
//
// Binaries looks for a program in the folder KUBEBUILDER_ASSETS, and then in the user's cache. Next, it tries once to
// download the program with setup-envtest, unless DROVER_LAB_NO_DOWNLOAD=1 is set. Otherwise, it builds the program
// from Go modules, which takes about 15 minutes on two cores, once per version. It reports its progress to progress.
//
// Concurrent calls wait for each other, even if they come from different processes. A call that is interrupted or
// killed never leaves an incomplete binary behind.
func Binaries(ctx context.Context, progress io.Writer, names ...string) (Assets, error) {
	if len(names) == 0 {
		names = DefaultPrograms()
	}
	found, rest, err := fromAssetsFolder(os.Getenv(envAssets), names)
	if err != nil {
		return nil, err
	}
	if len(rest) == 0 {
		return found, nil
	}
	c, err := newCatalog()
	if err != nil {
		return nil, err
	}
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	built, err := s.ensure(ctx, newReporter(progress), rest)
	if err != nil {
		return nil, err
	}
	for name, path := range built {
		found[name] = path
	}
	return found, nil
}

// OldestBinaries is like Binaries for DefaultPrograms, but with a control plane of the oldest Kubernetes version that
// Drover supports (docs/versions.md) and the newest kubectl. It ignores KUBEBUILDER_ASSETS, which contains only one
// version.
func OldestBinaries(ctx context.Context, progress io.Writer) (Assets, error) {
	c, err := oldestCatalog()
	if err != nil {
		return nil, err
	}
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	return s.ensure(ctx, newReporter(progress), DefaultPrograms())
}

// fromAssetsFolder looks for programs in dir, and also returns the names that it did not find. An empty dir contains
// no programs. A dir that does not exist is an error, because the variable was set on purpose.
func fromAssetsFolder(dir string, names []string) (Assets, []string, error) {
	if dir == "" {
		return Assets{}, names, nil
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, nil, fmt.Errorf("find binaries: %s=%s is not a folder: correct it or unset it", envAssets, dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("find binaries: %w", err)
	}
	found, rest := lookIn(dir, names)
	return found, rest, nil
}

// lookIn looks for executables in a folder, and also returns the names that it did not find.
func lookIn(dir string, names []string) (Assets, []string) {
	found := Assets{}
	var rest []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			found[name] = path
		} else {
			rest = append(rest, name)
		}
	}
	return found, rest
}

// store is a folder in the user's cache for the programs of one catalog, together with the ways to fill it.
type store struct {
	dir     string
	catalog catalog
	goTool  string
	// download downloads the envtest programs and returns their folder. It is nil if downloads are disabled.
	download func(ctx context.Context, into string) (string, error)
}

func newStore(c catalog) (*store, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find the cache folder: %w: set HOME or XDG_CACHE_HOME", err)
	}
	s := &store{
		dir:     filepath.Join(cache, "drover", "lab", c.stamp(runtime.GOOS, runtime.GOARCH)),
		catalog: c,
		goTool:  "go",
	}
	server, has := c[APIServer]
	if v := os.Getenv(envNoDownload); has && (v == "" || v == "0" || v == "false") {
		s.download = envtestDownload{goTool: s.goTool, version: minorOf(server.module.version), index: envtestIndex}.fetch
	}
	return s, nil
}

// ensure returns the paths of the named programs, which must be in the catalog. It downloads or builds the missing
// programs.
func (s *store) ensure(ctx context.Context, out *reporter, names []string) (Assets, error) {
	for _, name := range names {
		if _, ok := s.catalog[name]; !ok {
			return nil, fmt.Errorf("find binaries: unknown program %q", name)
		}
	}
	if found, rest := s.find(names); len(rest) == 0 {
		return found, nil
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare the cache: %w", err)
	}
	lock, err := acquire(ctx, filepath.Join(s.dir, "lock"), out)
	if err != nil {
		return nil, err
	}
	defer lock.release()

	s.removeLeftovers()
	_, rest := s.find(names) // another process may have built them in the meantime
	if s.canDownload(rest) && s.tryDownload(ctx, out) {
		_, rest = s.find(names)
	}
	if err := s.buildAll(ctx, out, rest); err != nil {
		return nil, err
	}
	found, rest := s.find(names)
	if len(rest) > 0 {
		return nil, fmt.Errorf("find binaries: %s vanished from %s", strings.Join(rest, ", "), s.dir)
	}
	return found, nil
}

// find looks for the named programs among the built ones. If any envtest program has not been built, find takes all
// envtest programs from the download, because they must come from the same folder to match each other.
func (s *store) find(names []string) (Assets, []string) {
	found, rest := lookIn(s.dir, names)
	if !slices.ContainsFunc(rest, isEnvtestProgram) {
		return found, rest
	}
	dir, err := os.ReadFile(s.downloadNote())
	if err != nil {
		return found, rest
	}
	var wanted []string
	for _, name := range names {
		if isEnvtestProgram(name) {
			wanted = append(wanted, name)
		}
	}
	downloaded, missing := lookIn(strings.TrimSpace(string(dir)), wanted)
	if len(missing) > 0 {
		return found, rest
	}
	for name, path := range downloaded {
		found[name] = path
	}
	rest = slices.DeleteFunc(rest, isEnvtestProgram)
	return found, rest
}

func isEnvtestProgram(name string) bool { return slices.Contains(envtestPrograms(), name) }

func (s *store) downloadNote() string { return filepath.Join(s.dir, "envtest-folder") }

// removeLeftovers deletes files that killed builds have left behind. The caller must hold the lock, so that no build
// is writing them.
func (s *store) removeLeftovers() {
	leftovers, _ := fs.Glob(os.DirFS(s.dir), ".tmp-*") // the path of the folder must not be part of the pattern
	for _, name := range leftovers {
		_ = os.Remove(filepath.Join(s.dir, name)) // a file that remains only uses disk space
	}
}

// buildAll builds the programs one after another, because the go command already uses all cores.
func (s *store) buildAll(ctx context.Context, out *reporter, names []string) error {
	if len(names) == 0 {
		return nil
	}
	out.say("building %s from Go modules into %s (once per version; about 15 minutes for all on two cores)",
		strings.Join(names, ", "), s.dir)
	for i, name := range names {
		what := fmt.Sprintf("building %s (%d of %d)", name, i+1, len(names))
		if err := out.during(what, func() error { return s.build(ctx, s.catalog[name]) }); err != nil {
			return err
		}
	}
	return nil
}
