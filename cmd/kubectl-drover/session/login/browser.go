// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"os/exec"
	"runtime"
)

// OpenBrowser opens a URL in the user's browser. It does not wait for the browser to exit.
func OpenBrowser(ctx context.Context, url string) error {
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	// if the command starts a browser, the browser keeps running
	command := exec.CommandContext(context.WithoutCancel(ctx), name, args...)
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }()
	return nil
}
