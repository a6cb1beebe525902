// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"errors"
	"io"

	"github.com/drover-dev/drover/test/lab"
)

// Real nodes require Linux, so there is no lab on other systems.

func runLabProcess([]string) (bool, error) { return false, nil }

// errNotLinux is returned on systems that cannot run real nodes.
var errNotLinux = errors.New("real nodes need Linux")

func labFault(string) error { return errNotLinux }

func upLab(context.Context, string, string, []lab.User, []string, io.Writer) error {
	return errNotLinux
}

func loadImage(context.Context, string, string, string) error { return errNotLinux }

func writeImage(string, []string, []string) error { return errNotLinux }

func downLab(context.Context, string) error { return errNotLinux }
