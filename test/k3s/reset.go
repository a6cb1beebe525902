// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// reset creates an etcd with one member from a snapshot, with the same checks as k3s.
func reset(args []string) error {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	var (
		_    = flags.Bool("cluster-reset", false, "")
		path = flags.String("cluster-reset-restore-path", "", "")
		dir  = flags.String("data-dir", data, "")
		s3   = flags.Bool("etcd-s3", true, "")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	note("cluster-reset", *path)
	config, err := readConfiguration()
	switch _, flagged := os.Stat(resetFlag); {
	case err != nil:
		return err
	case *s3 || *dir != data || *path == "":
		return fmt.Errorf("the stand-in does not know %v", args)
	case config.Server != "":
		return errors.New("cannot perform cluster-reset while server URL is set - remove server from configuration before resetting")
	case flagged == nil:
		return errors.New("cluster reset was done already: remove " + resetFlag)
	case exec.Command("/bin/sh", "-c", `kill -0 "$(cat `+pidFile+`)"`).Run() == nil:
		return errors.New("k3s runs")
	}
	to := data + "/server/db/etcd"
	if err := os.Rename(to, fmt.Sprintf("%s-old-%d", to, time.Now().Unix())); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	peer := "http://" + set.Address + ":2380"
	if out, err := exec.Command(set.Etcdutl, "snapshot", "restore", *path, "--data-dir="+to, "--name="+config.Node, "--initial-cluster="+config.Node+"="+peer, "--initial-advertise-peer-urls="+peer).CombinedOutput(); err != nil {
		return fmt.Errorf("etcdutl: %w: %s", err, out)
	}
	if err := errors.Join(os.WriteFile(resetFlag, nil, 0o600), os.RemoveAll(keysFile)); err != nil { // it takes the keys of the snapshot
		return err
	}
	fmt.Println("Managed etcd cluster membership has been reset, restart without --cluster-reset flag now.")
	return nil
}
