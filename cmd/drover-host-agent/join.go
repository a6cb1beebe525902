// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/agent/host"
	v1 "github.com/drover-dev/drover/api/v1"
)

const (
	unitName = "drover-host-agent.service"
	// maxToken is the maximum length of the first line of input, which contains the token, in bytes.
	maxToken = 4 << 10
)

// unit is the agent's systemd unit. With KillMode=process, an instruction that is already running continues while the
// agent restarts.
const unit = `[Unit]
Description=Drover host agent
Wants=network-online.target
After=network-online.target
ConditionPathExists=%[2]s/config.json

[Service]
Environment=%[3]s=%[2]s
ExecStart=%[1]s run
KillMode=process
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
`

func joinCommand() *cobra.Command {
	var config host.Config
	var trust, units string
	var start bool
	join := &cobra.Command{
		Use: "join", Short: "Write the agent's configuration and start the agent as a systemd unit", Args: cobra.NoArgs,
		Long: "The join token is read from standard input, because other users can see the arguments of a process.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), maxToken)).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("read join token: %w", err)
			}
			config.Trust = v1.Trust(trust)
			dir := host.ConfigDir(os.Getenv)
			if err := host.Join(dir, config, strings.TrimSpace(token)); err != nil {
				return err
			}
			if !start {
				cmd.Println("joined; start the agent with: drover-host-agent run")
				return nil
			}
			return install(cmd, units, dir)
		},
	}
	flags := join.Flags()
	flags.StringSliceVar(&config.Servers, "server", nil, "URL of the hub; can be repeated")
	flags.StringVar(&trust, "trust", string(v1.TrustPinned), "Pinned, or System if the hub has a certificate of a public "+
		"CA")
	flags.StringSliceVar(&config.Checksums, "ca-checksum", nil, "SHA-256 checksum of the hub's CA certificate")
	flags.StringSliceVar(&config.Roles, "role", nil, "role of the node: etcd, control-plane or worker")
	flags.StringSliceVar(&config.Labels, "label", nil, "label of the node, key=value")
	flags.StringSliceVar(&config.Taints, "taint", nil, "taint of the node, key=value:effect")
	flags.StringVar(&units, "unit-dir", "/etc/systemd/system", "directory of systemd units")
	flags.BoolVar(&start, "start", true, "start the agent as a systemd unit")
	return join
}

func install(cmd *cobra.Command, units, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text := fmt.Sprintf(unit, self, dir, host.EnvConfigDir)
	if err := os.WriteFile(filepath.Join(units, unitName), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write unit: %w", err)
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", unitName}, {"restart", unitName}} {
		if out, err := exec.CommandContext(cmd.Context(), "systemctl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	cmd.Println("the agent is running; see: journalctl -u  " + unitName)
	return nil
}
