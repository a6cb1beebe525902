// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"

	"github.com/drover-dev/drover/test/lab/nodes"
)

const nodesUsage = `
Clusters with real nodes, as FILE describes them (docs/lab/README.md); they take root:

  labctl check                say what this machine lacks for them
  labctl up -f FILE           bring the lab up, or what of it does not run
  labctl down -f FILE | NAME  end and remove it, whatever is left of it
  labctl cut NAME NODE        take a node off the network; "labctl mend NAME NODE" ends that
  labctl kill NAME NODE       end a node as a power cut does; "labctl up" starts it again
  labctl load NAME TARBALL [CLUSTER]      give images to the nodes
  labctl exec NAME NODE COMMAND [ARG...]  run a command on a node

`

// runNodes runs a command for real nodes. It returns false if args contain a different command.
func runNodes(ctx context.Context, args []string, out, progress io.Writer) (bool, error) {
	if known, err := nodes.RunProcess(args); known {
		return true, err
	}
	switch args[0] {
	case "check":
		return true, check(args[1:], out)
	case "up", "down":
		if i := slices.IndexFunc(args, isFileFlag); i < 0 && (args[0] == "up" || len(args) != 2 || args[1][0] == '-') {
			return false, nil // the command is for a control plane without nodes
		}
		if args[0] == "up" {
			return true, upLab(ctx, args[1:], out, progress)
		}
		return true, downLab(ctx, args[1:], progress)
	case "cut", "mend", "kill", "load", "exec":
		if len(args) < 3 {
			return true, fmt.Errorf("labctl %s: too few arguments\n%s", args[0], usage)
		}
		l, err := nodes.Open("", args[1])
		if err != nil {
			return true, err
		}
		return true, control(ctx, l, args[0], args[2:])
	}
	return false, nil
}

func isFileFlag(arg string) bool { return arg == "-f" || arg == "--file" }

func check(args []string, out io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("labctl check: unexpected argument %q", args[0])
	}
	if err := nodes.Check(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, "this machine can run nodes")
	return err
}

// fileOf parses the flags -f and --dir, and returns the lab file and the folder.
func fileOf(name string, args []string, progress io.Writer) (nodes.File, string, error) {
	flags := flag.NewFlagSet("labctl "+name, flag.ContinueOnError)
	flags.SetOutput(progress)
	var path string
	flags.StringVar(&path, "f", "", "file that describes the lab")
	flags.StringVar(&path, "file", "", "the same as -f")
	dir := flags.String("dir", "", "folder of the lab (default: one in the user's cache, by the lab's name)")
	if err := flags.Parse(args); err != nil {
		return nodes.File{}, "", err
	}
	if flags.NArg() > 0 {
		return nodes.File{}, "", fmt.Errorf("labctl %s: unexpected argument %q", name, flags.Arg(0))
	}
	file, err := nodes.ReadFile(path)
	return file, *dir, err
}

func upLab(ctx context.Context, args []string, out, progress io.Writer) error {
	file, dir, err := fileOf("up", args, progress)
	if err != nil {
		return err
	}
	l, err := nodes.Up(ctx, nodes.Options{File: file, Dir: dir, Progress: progress})
	if err != nil {
		return err
	}
	for _, c := range file.Clusters {
		fmt.Fprintln(out, l.Kubeconfig(c.Name))
	}
	return nil
}

func downLab(ctx context.Context, args []string, progress io.Writer) error {
	if len(args) == 1 {
		return nodes.Down(ctx, "", args[0], progress)
	}
	file, dir, err := fileOf("down", args, progress)
	if err != nil {
		return err
	}
	return nodes.Down(ctx, dir, file.Name, progress)
}

// control runs a command that changes a running lab.
func control(ctx context.Context, l *nodes.Lab, verb string, args []string) error {
	switch verb {
	case "cut":
		return l.Cut(args[0])
	case "mend":
		return l.Mend(args[0])
	case "kill":
		return l.Kill(args[0])
	case "load":
		cluster := ""
		if len(args) > 1 {
			cluster = args[1]
		}
		return l.Load(ctx, args[0], cluster)
	}
	if len(args) < 2 {
		return errors.New("labctl exec: name a command to run")
	}
	command, err := l.Enter(args[0], args[1:]...)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
