// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/drover-dev/drover/test/lab"
	lablib "github.com/drover-dev/drover/test/lab/nodes"
)

// runLabProcess runs a process of the lab if args are the arguments of such a process, and reports whether they are.
func runLabProcess(args []string) (bool, error) { return lablib.RunProcess(args) }

// labFault returns nil if the lab can run in this folder. Otherwise, it returns the reason in one line.
func labFault(dir string) error {
	err := lablib.Check()
	if err == nil {
		err = lablib.CheckDir(dir)
	}
	if err == nil {
		return nil
	}
	return errors.New(strings.NewReplacer(":\n- ", ": ", "\n- ", "; ").Replace(err.Error()))
}

// upLab brings up the lab that a file's content describes. users and args are for the hub and its API server.
func upLab(ctx context.Context, dir, file string, users []lab.User, args []string, progress io.Writer) error {
	parsed, err := lablib.ParseFile([]byte(file))
	if err != nil {
		return err
	}
	_, err = lablib.Up(ctx, lablib.Options{
		File: parsed, Dir: dir, Progress: progress,
		Users: map[string][]lab.User{hub: users}, APIServerArgs: map[string][]string{hub: args},
	})
	return err
}

func loadImage(ctx context.Context, dir, tarball, cluster string) error {
	l, err := lablib.Open(dir, "")
	if err != nil {
		return err
	}
	return l.Load(ctx, tarball, cluster)
}

// writeImage writes an image of the given programs as a tarball. The image has all of the given names.
func writeImage(path string, names, programs []string) error {
	return lablib.WriteImage(path, lablib.Image{Name: names[0], Aliases: names[1:], Programs: programs, User: "65532:65532"})
}

func downLab(ctx context.Context, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo has real nodes, whose processes are root's: run it as root")
	}
	return lablib.Down(ctx, dir, "", nil)
}
