// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-drover is kubectl's plugin for Drover.
//
// This file lists the plugin's commands. Each package below this one contains the commands for one subject. These
// packages import package cli, but not each other.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/drover-dev/drover/cmd/kubectl-drover/agents"
	"github.com/drover-dev/drover/cmd/kubectl-drover/baselines"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/export"
	"github.com/drover-dev/drover/cmd/kubectl-drover/grants"
	"github.com/drover-dev/drover/cmd/kubectl-drover/hosts"
	"github.com/drover-dev/drover/cmd/kubectl-drover/plans"
	"github.com/drover-dev/drover/cmd/kubectl-drover/projects"
	"github.com/drover-dev/drover/cmd/kubectl-drover/restore"
	"github.com/drover-dev/drover/cmd/kubectl-drover/rights"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session"
	"github.com/drover-dev/drover/cmd/kubectl-drover/users"
)

// version is set at build time.
var version = "v0.1.0-dev"

// commands returns the commands of the plugin. They share the flags that select the hub.
func commands(o *cli.Options) []*cobra.Command {
	return []*cobra.Command{
		// commands that show who may do what in a member, and why
		rights.NewWhy(o), rights.NewWhoCan(o),
		// commands for users' and groups' roles, and for projects
		grants.NewGrant(o), grants.NewRevoke(o), projects.New(o),
		// commands that show the progress of plans and simulate plans
		plans.New(o),
		// commands that show the state of Baselines, and roll them back
		baselines.New(o),
		// commands for clusters that join, and for their agents
		agents.NewImport(o), agents.NewList(o), agents.NewStatus(o), agents.NewLogs(o),
		agents.NewUninstall(o),
		// commands for machines that join
		hosts.New(o),
		// commands for a hub that was restored from a backup
		restore.NewAdopt(o), restore.NewRestored(o), restore.NewRevoked(o),
		// commands for users who sign in with a password
		users.New(o),
		// commands for a user's session and for the clusters that the user can reach
		session.NewLogin(o), session.NewLogout(o), session.NewWhoAmI(o), session.NewGetToken(o), session.NewCredential(o),
		session.NewClusters(o), session.NewUse(o), session.NewKubeconfig(o), session.NewToken(o), session.NewSession(o), session.NewExec(o),
		// commands for migrating from Rancher
		export.New(o),
		newVersion(),
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this plugin", Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), version)
			return err
		},
	}
}

func main() {
	klog.SetLogger(logr.Discard()) // the plugin's errors contain everything that a user needs
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, argumentsOf(os.Args), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	return cli.Run(ctx, version, commands, args, out, complaints)
}

// completerName is the name of the executable that kubectl runs to complete this plugin's arguments.
const completerName = "kubectl_complete-drover"

// argumentsOf returns the arguments of a command line. If the program was started under the name completerName,
// argumentsOf returns the arguments of the completion command. A link with that name in the PATH is therefore
// sufficient for kubectl to complete the plugin's arguments.
func argumentsOf(line []string) []string {
	if name := strings.TrimSuffix(filepath.Base(line[0]), ".exe"); name == completerName {
		return append([]string{cobra.ShellCompRequestCmd}, line[1:]...)
	}
	return line[1:]
}
