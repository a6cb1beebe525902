// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release builds all files of a Drover release from sources alone, without a container engine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `release builds what a release consists of, into dist/. It runs several commands in their order.

  release images     OCI images, with their SBOMs, in dist/images
  release chart      the Helm chart, in dist/chart
  release plugins    the plugin of kubectl for five platforms, and a manifest for krew, in dist/plugin
  release bundle     one archive of all of this that installs without access to the internet
  release provenance from which commit and with which settings the files in dist were built
  release checksums  the checksums of all that is in dist

Variables:
  VERSION            version of the programs and tag of the image (default v0.1.0-dev)
  IMG                name of the image (default drover:VERSION)
  PLATFORMS          platforms of the images (default linux/amd64,linux/arm64)
  SOURCE_DATE_EPOCH  time of all that is made, in seconds (default: the time of the commit)
`

// oldestKubernetes is the oldest version that the hub and members may run. See docs/versions.md.
const oldestKubernetes = "1.30.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want a command\n" + usage)
	}
	r, err := newRelease(ctx, os.Getenv)
	if err != nil {
		return err
	}
	for _, command := range args {
		if err := r.build(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

func (r release) build(ctx context.Context, command string) error {
	switch command {
	case "images":
		return r.images(ctx)
	case "chart":
		return r.chart(ctx)
	case "plugins":
		return r.plugins(ctx)
	case "bundle":
		return r.bundle(ctx)
	case "provenance":
		return r.provenance()
	case "checksums":
		return r.checksums()
	}
	return fmt.Errorf("unknown command %q\n%s", command, usage)
}

type release struct {
	// root is the source folder, and dist is the folder for the results.
	root, dist string
	version    string
	// revision is the commit, or "" if there is no repository, or if the sources differ from the commit.
	revision string
	// image is the name of the image in its archive.
	image     string
	platforms []string
	// created is the timestamp of all files. It is fixed so that the same sources produce the same bytes.
	created time.Time
}

// newRelease reads the settings from environment variables.
func newRelease(ctx context.Context, getenv func(string) string) (release, error) {
	root, err := sources()
	if err != nil {
		return release{}, err
	}
	r := release{
		root: root, dist: filepath.Join(root, "dist"),
		version: or(getenv("VERSION"), "v0.1.0-dev"), revision: revision(ctx, root),
		platforms: strings.Split(or(getenv("PLATFORMS"), "linux/amd64,linux/arm64"), ","),
	}
	r.image = or(getenv("IMG"), "drover:"+r.version)
	epoch := or(getenv("SOURCE_DATE_EPOCH"), or(git(ctx, root, "log", "-1", "--format=%ct"), "0"))
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return release{}, fmt.Errorf("SOURCE_DATE_EPOCH=%s is not a number of seconds since 1970", epoch)
	}
	r.created = time.Unix(seconds, 0).UTC()
	return r, nil
}

// sources returns the root of the repository that contains the working directory.
func sources() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "PROJECT")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the sources: no folder above has a PROJECT file: run this in the repository")
		}
	}
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// revision returns the commit that the sources in a folder are from. It returns "" if there is none, because the
// provenance of a release must not name a commit that does not have the sources.
func revision(ctx context.Context, dir string) string {
	if git(ctx, dir, "status", "--porcelain") != "" {
		say("the sources have changes that are not committed, so nothing names a commit")
		return ""
	}
	return git(ctx, dir, "rev-parse", "HEAD")
}

// git returns the output of a git command. It returns "" if there is no repository.
func git(ctx context.Context, dir string, args ...string) string {
	command := exec.CommandContext(ctx, "git", args...)
	command.Dir = dir
	out, err := command.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "release: "+format+"\n", args...) }
