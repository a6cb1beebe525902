// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Paths that the hub serves without authentication, for machines that are joining.
const (
	// PathHostScript serves the script that the join command runs.
	PathHostScript = "/v1/hosts/join.sh"
	// PathHostAgent is followed by a platform, such as "linux-amd64". It serves the agent's binary for that platform.
	PathHostAgent = "/v1/hosts/agent/"
)

// Paths of requests from the hub to a host's agent, in addition to PathReport, PathSettings and PathUninstall.
const (
	// PathHostInstructions accepts HostInstructions in a PUT request. The query contains the version of the
	// instructions. The agent responds with 204 once the instructions are stored permanently, and with 409 while the
	// host is being cleaned. A DELETE request withdraws the instructions. Both requests may have the parameter
	// QueryCheckpoint. The agent stores the latest checkpoint, even if it has nothing else to do. The progress of the
	// instructions is part of the report.
	PathHostInstructions = "/v1/host/plan"
	// QueryVersion is the query parameter that contains the version of the instructions.
	QueryVersion = "version"
)

// hostPrefix distinguishes the member names of Hosts from the names of Clusters. The name of a Cluster never contains
// a colon.
const hostPrefix = "host:"

// HostMember returns a Host's member name. A ClusterRef contains the same name.
func HostMember(host string) string { return hostPrefix + host }

// HostOf returns the Host's name and true if the member is a Host. Otherwise, it returns the member's name and false.
func HostOf(member string) (string, bool) { return strings.CutPrefix(member, hostPrefix) }

// HostReport is the Host part of a report from a host's agent.
type HostReport struct {
	Machine  HostMachine  `json:"machine"`
	Progress HostProgress `json:"progress"`
}

// HostMachine is the information that a host's agent reports about its machine.
type HostMachine struct {
	// The roles, labels and taints come from the join command.
	v1.HostProperties
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
}

// Bound trims a host's report to its limits. It also removes terminal control characters, because kubectl prints
// parts of the report in a user's terminal.
func (r *HostReport) Bound() {
	m := &r.Machine
	for _, text := range []*string{&m.Hostname, &m.OS, &m.Architecture, &m.Kernel} {
		*text = Cut(printable(*text, ""), maxText)
	}
	m.CPUs, m.MemoryMiB = max(m.CPUs, 0), min(max(m.MemoryMiB, 0), maxMemoryMiB)
	for list, most := range map[*[]string]int{&m.Addresses: 16, &m.Roles: 3, &m.Labels: 32, &m.Taints: 32} {
		*list = slices.Clone((*list)[:min(len(*list), most)])
		for i := range *list {
			(*list)[i] = Cut(printable((*list)[i], ""), maxHostText)
		}
	}
	r.Progress.Bound()
}

// Limits for HostInstructions.
const (
	// MaxHostInstructions is the maximum length of HostInstructions as JSON, in bytes. Instructions of this size fit
	// into a Secret.
	MaxHostInstructions = 1 << 20

	maxHostFiles        = 256
	maxHostInstructions = 128
	maxHostProbes       = 32
	maxHostCommand      = 256 // maximum number of words in a command, or of variables in its environment
	maxHostTimeout      = 24 * 60 * 60
	maxHostPath         = 1024
)

// Limits for a HostMachine. They are large enough for 1 PiB of memory, and for a label whose key and value have the
// maximum length.
const (
	maxMemoryMiB = 1 << 30
	maxHostText  = 512
)

// Defaults for HostInstructions, in seconds.
const (
	// DefaultInstructionTimeout is the time limit for one run of an instruction.
	DefaultInstructionTimeout = 600
	// DefaultPeriod is the interval between runs of a periodic instruction.
	DefaultPeriod = 600
	// DefaultProbePeriod is the interval between attempts of a probe.
	DefaultProbePeriod = 10
	// DefaultProbeTimeout is the time limit for one attempt of a probe.
	DefaultProbeTimeout = 5
	// DefaultProbeFailures is the number of consecutive failures after which a probe that has succeeded before counts
	// as failing.
	DefaultProbeFailures = 3
)

// HostInstructions tell a host's agent what to do as root on its machine. The agent writes the files and runs the
// instructions in order, once each. It then repeats the periodic instructions and the probes.
//
// All components use this type for instructions. Package internal/provision/k3s returns them, and the DroverMachine
// controller builds them from a bootstrap configuration and from tasks. They are stored as JSON in a Secret, sent by
// the manager, and stored by the agent in the host's journal. Package internal/provision/progress describes their
// progress.
//
// For historical reasons, some names call the instructions a plan. These names cannot be changed, because replicas and
// agents of other versions rely on them. They are the path, the Secret "<host>-host-plan" with its key, label, type and
// annotations, status.plan of a Host, and the agent's file plan.json. Everywhere else, the word is instructions.
type HostInstructions struct {
	// Owner identifies the object that the instructions belong to, such as "Cluster/prod". It is empty if Drover does not
	// know the object. A host accepts instructions with a different owner only after it has been cleaned.
	Owner string `json:"owner,omitempty"`
	// Files are written before the instructions run. There are at most 256.
	Files []HostFile `json:"files,omitempty"`
	// Instructions run one after another, once each. If one of them fails, the later ones do not run. There are at
	// most 128.
	Instructions []HostInstruction `json:"instructions,omitempty"`
	// Periodic contains instructions that run repeatedly after all Instructions have succeeded. There are at most 128.
	Periodic []HostInstruction `json:"periodic,omitempty"`
	// Probes check whether the installed software works. There are at most 32.
	Probes []HostProbe `json:"probes,omitempty"`
	// Clean holds instructions that clean the host. Each of them runs once, after the HostInstructions have been
	// withdrawn and before the files are removed. There are at most 128.
	Clean []HostInstruction `json:"clean,omitempty"`
}

// HostFile is a file that the agent writes or removes.
type HostFile struct {
	// Path is an absolute path. Missing parent directories are created with access for root only.
	Path string `json:"path"`
	// Content is the content of the file. It is encoded as base64 in JSON.
	Content []byte `json:"content,omitempty"`
	// Mode is the file mode in octal. The default is "0600".
	Mode string `json:"mode,omitempty"`
	// UID and GID are the file's owner and group. The default is 0.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`
	// Absent is true if the file is to be removed.
	Absent bool `json:"absent,omitempty"`
}

// Environment variables that instructions can use.
const (
	// EnvHostAgent is the path of the host agent's binary. Older agents do not set this variable.
	EnvHostAgent = "DROVER_HOST_AGENT"
	// EnvS3AccessKey, EnvS3SecretKey and EnvS3CA hold the credentials for an S3-compatible store and the store's CA.
	// An instruction that runs the agent's binary to access the store sets these variables.
	EnvS3AccessKey = "DROVER_S3_ACCESS_KEY"
	EnvS3SecretKey = "DROVER_S3_SECRET_KEY"
	EnvS3CA        = "DROVER_S3_CA"
)

// Repeatable reports whether the instruction with the given ID can safely run again. This is the case for tasks that
// take or copy an etcd snapshot. A schedule creates an unlimited number of such tasks, so a host removes their
// instructions from its journal once they have ended and the hub no longer sends them.
func Repeatable(id string) bool {
	return strings.HasPrefix(id, HostTaskPrefix+"snapshot-") || strings.HasPrefix(id, HostTaskPrefix+"upload-")
}

// HostTaskPrefix is the prefix that turns the ID of a machine's task into the ID of the corresponding instruction.
const HostTaskPrefix = "task-"

// ID prefixes of instructions that start and stop a service. A host cancels the start of a service if the first
// instruction of the new HostInstructions stops the service, because starting a service may take much longer than
// stopping it.
const (
	HostStartPrefix = "start-"
	HostStopPrefix  = "stop-"
)

// HostInstruction is a command for a host's agent to run.
type HostInstruction struct {
	// ID identifies the instruction. It consists of 1 to 63 letters, digits, dots and hyphens. A host never runs two
	// one-time instructions with the same ID. To repeat an instruction, give it a new ID.
	ID string `json:"id"`
	// Command is the program and its arguments. It is executed without a shell.
	Command []string `json:"command"`
	// Env contains environment variables for the command, in addition to the PATH and HOME of the agent. The agent
	// removes their values from reports.
	Env map[string]string `json:"env,omitempty"`
	// TimeoutSeconds is the time after which the command is killed. The default is 600, and the maximum is one day.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// PeriodSeconds is the interval between runs of a periodic instruction. The default is 600.
	PeriodSeconds int `json:"periodSeconds,omitempty"`
}

// HostProbe is an HTTP GET that must return a 2xx status.
type HostProbe struct {
	// Name is the name of the probe. It has the same form as the ID of an instruction.
	Name string `json:"name"`
	// URL is an http or https URL.
	URL string `json:"url"`
	// CAFile is the path of the CA bundle that verifies the server's certificate. CertFile and KeyFile are the paths of
	// the client's certificate and key. All files are on the machine.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// PeriodSeconds is the interval between attempts. The default is 10.
	PeriodSeconds int `json:"periodSeconds,omitempty"`
	// TimeoutSeconds limits one attempt. The default is 5.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// FailureThreshold is the number of consecutive failures after which the probe counts as failed. The default is 3.
	FailureThreshold int `json:"failureThreshold,omitempty"`
}

// hostName matches the IDs and names in instructions. They contain no slash and do not start with a dot, because IDs
// are also used as directory names. The length is checked separately, because a bounded repetition would make the
// compiled expression large.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

const maxHostName = 63 // bytes

func validHostName(name string) bool { return len(name) <= maxHostName && hostName.MatchString(name) }

var hostMode = regexp.MustCompile(`^0?[0-7]{3}$`)

// ParseHostInstructions parses and validates instructions. Its error explains what to change. The error never
// contains any file content, command or variable.
func ParseHostInstructions(raw []byte) (*HostInstructions, error) {
	if len(raw) > MaxHostInstructions {
		return nil, fmt.Errorf("the instructions have %d bytes, at most %d", len(raw), MaxHostInstructions)
	}
	parsed := &HostInstructions{}
	if err := untrusted.StrictJSON(raw, parsed, untrusted.Large().WithBytes(MaxHostInstructions)); err != nil {
		// the decoder's error is dropped because it may quote file content
		return nil, fmt.Errorf("the instructions are not valid JSON for a host: see the fields in docs/spec/host.md")
	}
	return parsed, parsed.check()
}

func (p *HostInstructions) check() error {
	switch {
	case len(p.Owner) > maxHostText || printable(p.Owner, "") != p.Owner:
		return fmt.Errorf("the owner has more than %d bytes, or unprintable characters", maxHostText)
	case len(p.Files) > maxHostFiles:
		return fmt.Errorf("the instructions have %d files, at most %d", len(p.Files), maxHostFiles)
	case len(p.Instructions) > maxHostInstructions,
		len(p.Periodic) > maxHostInstructions, len(p.Clean) > maxHostInstructions:
		return fmt.Errorf("there are more than %d instructions", maxHostInstructions)
	case len(p.Probes) > maxHostProbes:
		return fmt.Errorf("the instructions have %d probes, at most %d", len(p.Probes), maxHostProbes)
	}
	for i, file := range p.Files {
		if err := file.check(); err != nil {
			return fmt.Errorf("files[%d]: %w", i, err)
		}
	}
	seen := map[string]bool{}
	for i, instruction := range slices.Concat(p.Instructions, p.Periodic, p.Clean) {
		if err := instruction.check(); err != nil {
			return fmt.Errorf("instruction %d: %w", i, err)
		}
		if seen[instruction.ID] {
			return fmt.Errorf("instruction %d: the ID %s occurs twice", i, instruction.ID)
		}
		seen[instruction.ID] = true
	}
	clear(seen)
	for i, probe := range p.Probes {
		if err := probe.check(); err != nil {
			return fmt.Errorf("probes[%d]: %w", i, err)
		}
		if seen[probe.Name] {
			return fmt.Errorf("probes[%d]: the name %s occurs twice", i, probe.Name)
		}
		seen[probe.Name] = true
	}
	return nil
}

func (f HostFile) check() error {
	switch {
	case len(f.Path) > maxHostPath || !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path ||
		f.Path == "/" || strings.ContainsRune(f.Path, 0):
		return fmt.Errorf("the path must be absolute, without \"..\" and without a trailing slash")
	case f.Mode != "" && !hostMode.MatchString(f.Mode):
		return fmt.Errorf("the mode must be octal, like 0600")
	case f.UID < 0 || f.GID < 0:
		return fmt.Errorf("uid and gid must not be negative")
	case f.Absent && len(f.Content) > 0:
		return fmt.Errorf("an absent file must have no content")
	}
	return nil
}

func (i HostInstruction) check() error {
	switch {
	case !validHostName(i.ID):
		return fmt.Errorf("the ID must have 1 to 63 letters, digits, dots and hyphens")
	case len(i.Command) == 0 || i.Command[0] == "" || len(i.Command) > maxHostCommand || len(i.Env) > maxHostCommand:
		return fmt.Errorf("%s: the command must have 1 to %d words, and there may be at most as many variables",
			i.ID, maxHostCommand)
	case i.TimeoutSeconds < 0 || i.TimeoutSeconds > maxHostTimeout ||
		i.PeriodSeconds < 0 || i.PeriodSeconds > maxHostTimeout:
		return fmt.Errorf("%s: times must be between 0 and %d seconds", i.ID, maxHostTimeout)
	}
	for name := range i.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("%s: the name of a variable is not valid", i.ID)
		}
	}
	return nil
}

func (p HostProbe) check() error {
	u, err := url.Parse(p.URL)
	switch {
	case !validHostName(p.Name):
		return fmt.Errorf("the name must have 1 to 63 letters, digits, dots and hyphens")
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil:
		return fmt.Errorf("%s: the URL must be http or https, with a host and without a user", p.Name)
	case p.PeriodSeconds < 0 || p.PeriodSeconds > maxHostTimeout ||
		p.TimeoutSeconds < 0 || p.TimeoutSeconds > maxHostTimeout ||
		p.FailureThreshold < 0 || p.FailureThreshold > 1000:
		return fmt.Errorf("%s: a time or threshold is out of its range", p.Name)
	}
	return nil
}

// Timeout returns the time limit for one run.
func (i HostInstruction) Timeout() time.Duration {
	return seconds(i.TimeoutSeconds, DefaultInstructionTimeout)
}

// Period returns the interval between runs.
func (i HostInstruction) Period() time.Duration { return seconds(i.PeriodSeconds, DefaultPeriod) }

// Digest returns the digest of an instruction. Instructions with the same digest have the same effect.
func (i HostInstruction) Digest() string { return digestOf(i) }

// Timeout returns the time limit for one attempt.
func (p HostProbe) Timeout() time.Duration { return seconds(p.TimeoutSeconds, DefaultProbeTimeout) }

// Period returns the interval between attempts.
func (p HostProbe) Period() time.Duration { return seconds(p.PeriodSeconds, DefaultProbePeriod) }

// Digest returns the digest of the instructions.
func (p *HostInstructions) Digest() string { return digestOf(p) }

func seconds(n, otherwise int) time.Duration {
	if n == 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

func digestOf(value any) string {
	raw, err := json.Marshal(value)
	if err != nil { // strings, numbers, bytes and JSON that was read can always be marshaled
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
