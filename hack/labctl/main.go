// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command labctl builds the programs of the lab and runs a control plane for manual tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/drover-dev/drover/test/lab"
)

const usage = `labctl runs real Kubernetes control planes on this machine.

  labctl build [program...]   make sure that the programs exist (default: etcd, kube-apiserver,
                              kube-controller-manager, kubectl) and print where
  labctl path [--oldest]      the same for the programs of envtest; prints the folder for KUBEBUILDER_ASSETS.
                              With --oldest, of the oldest Kubernetes that Drover supports
  labctl gitops               the same for the programs of Flux, Argo CD and Cluster API, kubeadm and an S3 server
  labctl clusterapi [--previous]  the same for the programs of Cluster API, and kubeadm. With --previous,
                              for the Kubernetes of the minor version before, too
  labctl up --dir D           start a control plane that lives on, with its state in folder D
  labctl down --dir D         stop it; the state stays, so that "up" finds it again
` + nodesUsage + `  labctl version              print which sources this was built of
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		err = nil
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "labctl:", err)
		os.Exit(1)
	}
}

// run runs one command line. It writes results to out and progress messages to progress.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	if len(args) == 0 {
		args = []string{"help"}
	}
	if known, err := runNodes(ctx, args, out, progress); known {
		return err
	}
	switch args[0] {
	case "build":
		return build(ctx, args[1:], out, progress)
	case "path":
		return path(ctx, args[1:], out, progress)
	case "gitops":
		return tools(ctx, out, progress, lab.Flux, lab.ArgoCDTool, lab.ClusterAPI, lab.KubeadmTool, lab.S3Tool)
	case "clusterapi":
		builds := []func(context.Context, io.Writer) (*lab.Tool, error){lab.ClusterAPI, lab.KubeadmTool}
		if slices.Contains(args[1:], "--previous") {
			builds = append(builds, lab.PreviousKubernetes)
		}
		return tools(ctx, out, progress, builds...)
	case "up":
		return up(ctx, args[1:], out, progress)
	case "down":
		return down(ctx, args[1:], progress)
	case "version", "--version":
		_, err := fmt.Fprintln(out, version())
		return err
	case "help", "-h", "--help":
		_, err := io.WriteString(out, usage)
		return err
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}

// version returns the source version that the Go linker recorded in this binary.
func version() string {
	if info, found := debug.ReadBuildInfo(); found && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

func build(ctx context.Context, names []string, out, progress io.Writer) error {
	if len(names) == 0 {
		names = lab.DefaultPrograms()
	}
	assets, err := lab.Binaries(ctx, progress, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintln(out, assets[name])
	}
	return nil
}

func tools(ctx context.Context, out, progress io.Writer, builds ...func(context.Context, io.Writer) (*lab.Tool, error)) error {
	var errs []error
	for _, build := range builds {
		tool, err := build(ctx, progress)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, path := range tool.Assets {
			fmt.Fprintln(out, path)
		}
	}
	return errors.Join(errs...)
}

func path(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("labctl path", flag.ContinueOnError)
	flags.SetOutput(progress)
	oldest := flags.Bool("oldest", false, "the programs of the oldest Kubernetes that Drover supports")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("labctl path: unexpected argument %q", flags.Arg(0))
	}
	find := func() (lab.Assets, error) { return lab.Binaries(ctx, progress) }
	if *oldest {
		find = func() (lab.Assets, error) { return lab.OldestBinaries(ctx, progress) }
	}
	assets, err := find()
	if err != nil {
		return err
	}
	dir, err := assets.EnvtestDir()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, dir)
	return err
}

func up(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("labctl up", flag.ContinueOnError)
	flags.SetOutput(progress)
	dir := flags.String("dir", "", "folder for the state (required)")
	name := flags.String("name", "lab", "name of the context in the kubeconfig")
	controllers := flags.Bool("controller-manager", true, "run kube-controller-manager too")
	var users []lab.User
	flags.Func("user", "name[:group,...] of a user who logs in with a token; may be repeated", func(s string) error {
		user, groups, _ := strings.Cut(s, ":")
		u := lab.User{Name: user}
		if groups != "" {
			u.Groups = strings.Split(groups, ",")
		}
		users = append(users, u)
		return nil
	})
	if err := parse(flags, args, dir); err != nil {
		return err
	}
	plane, err := lab.Start(ctx, lab.Options{
		Name: *name, Dir: *dir, Progress: progress, ControllerManager: *controllers, Users: users, Detached: true,
	})
	if err != nil {
		return err
	}
	if err := writeKubeconfigs(plane, users, out); err != nil {
		return errors.Join(err, plane.Stop())
	}
	return nil
}

// writeKubeconfigs writes one kubeconfig per user into the plane's folder and prints the file names.
func writeKubeconfigs(plane *lab.ControlPlane, users []lab.User, out io.Writer) error {
	admin := filepath.Join(plane.Dir(), "admin.kubeconfig")
	if err := plane.WriteKubeconfig(admin); err != nil {
		return err
	}
	fmt.Fprintln(out, admin)
	for _, user := range users {
		content, err := plane.UserKubeconfig(user.Name)
		if err != nil {
			return err
		}
		file := filepath.Join(plane.Dir(), "user-"+strings.ReplaceAll(user.Name, "/", "_")+".kubeconfig")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		fmt.Fprintln(out, file)
	}
	return nil
}

func down(ctx context.Context, args []string, progress io.Writer) error {
	flags := flag.NewFlagSet("labctl down", flag.ContinueOnError)
	flags.SetOutput(progress)
	dir := flags.String("dir", "", "folder given to up (required)")
	if err := parse(flags, args, dir); err != nil {
		return err
	}
	return lab.StopDetached(ctx, filepath.Join(*dir, "pids"))
}

func parse(flags *flag.FlagSet, args []string, dir *string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q", flags.Name(), flags.Arg(0))
	}
	if *dir == "" {
		return fmt.Errorf("%s: --dir is required", flags.Name())
	}
	return nil
}
