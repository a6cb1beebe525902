// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"context"
	"io"
)

const nodesUsage = ""

// runNodes handles no commands, because real nodes require Linux.
func runNodes(context.Context, []string, io.Writer, io.Writer) (bool, error) { return false, nil }
