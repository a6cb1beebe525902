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

// Real nodes take Linux: elsewhere there is no lab.

func runLabProcess([]string) (bool, error) { return false, nil }

// errNotLinux is what other systems lack for real nodes.
var errNotLinux = errors.New("real nodes take Linux")

func labFault(string) error { return errNotLinux }

func upLab(context.Context, string, string, []lab.User, io.Writer) error { return errNotLinux }

func loadImage(context.Context, string, string, string) error { return errNotLinux }

func writeImage(string, []string, []string) error { return errNotLinux }

func downLab(context.Context, string) error { return errNotLinux }
