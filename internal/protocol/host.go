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

	"github.com/drover-dev/drover/internal/untrusted"
)

// What the hub serves for machines that are to join, without a credential.
const (
	// PathHostScript is the script that the join command runs.
	PathHostScript = "/v1/hosts/join.sh"
	// PathHostAgent is followed by a platform, "linux-amd64", and serves the agent's program for it.
	PathHostAgent = "/v1/hosts/agent/"
)

// What the hub asks of a host's agent, beside PathReport, PathSettings and PathUninstall.
const (
	// PathHostInstructions takes HostInstructions by PUT, with their version in the query, and answers 204 when they are
	// stored permanently; 409 means that the host is being cleaned. DELETE takes the instructions away. Both may have
	// QueryCheckpoint, the latest of which the agent keeps, also when it has nothing else to do. Progress is in the
	// report.
	PathHostInstructions = "/v1/host/plan"
	// QueryVersion is the query parameter with the version of instructions.
	QueryVersion = "version"
)

// hostPrefix tells hosts from Clusters among members. No Cluster's name has a colon.
const hostPrefix = "host:"

// HostMember returns the name that a Host has among members, and in ClusterRef.
func HostMember(host string) string { return hostPrefix + host }

// HostOf returns the name of the Host that a member is, or, with false, that of the Cluster.
func HostOf(member string) (string, bool) { return strings.CutPrefix(member, hostPrefix) }

// HostReport is what a host's agent reports, as the part Host of its Report.
type HostReport struct {
	Machine  HostMachine  `json:"machine"`
	Progress HostProgress `json:"progress"`
}

// HostMachine is what a host's agent knows of its machine.
type HostMachine struct {
	Hostname     string   `json:"hostname,omitempty"`
	OS           string   `json:"os,omitempty"`
	Architecture string   `json:"architecture,omitempty"`
	Kernel       string   `json:"kernel,omitempty"`
	CPUs         int32    `json:"cpus,omitempty"`
	MemoryMiB    int64    `json:"memoryMiB,omitempty"`
	Addresses    []string `json:"addresses,omitempty"`
	// Roles, Labels and Taints are what the join command gave.
	Roles  []string `json:"roles,omitempty"`
	Labels []string `json:"labels,omitempty"`
	Taints []string `json:"taints,omitempty"`
}

// Bound cuts what a host reports to size, and leaves out what a terminal would obey: people see it in columns.
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

// Bounds of a HostInstructions.
const (
	// MaxHostInstructions is the length of a HostInstructions as JSON, in bytes: what a Secret has room for.
	MaxHostInstructions = 1 << 20

	maxHostFiles        = 256
	maxHostInstructions = 128
	maxHostProbes       = 32
	maxHostCommand      = 256 // words of a command, and variables of its environment
	maxHostTimeout      = 24 * 60 * 60
	maxHostPath         = 1024
)

// Bounds of a HostMachine: 1 PiB, and a label with its value.
const (
	maxMemoryMiB = 1 << 30
	maxHostText  = 512
)

// Defaults of a HostInstructions, in seconds.
const (
	// DefaultInstructionTimeout is how long an instruction may take.
	DefaultInstructionTimeout = 600
	// DefaultPeriod is the time between two runs of a periodic instruction.
	DefaultPeriod = 600
	// DefaultProbePeriod is the time between two attempts of a probe.
	DefaultProbePeriod = 10
	// DefaultProbeTimeout is how long one attempt of a probe may take.
	DefaultProbeTimeout = 5
	// DefaultProbeFailures is how many attempts in a row must fail until a probe that was successful is not.
	DefaultProbeFailures = 3
)

// HostInstructions is what a host's agent does on its machine, as root: it writes the files, runs the instructions once
// each and in their order, and then, again and again, the periodic instructions and the probes.
//
// They have this form from the decision to the journal of the host: internal/provision/k3s returns them, the controller
// of DroverMachines makes them of a bootstrap and of tasks, a Secret holds them as JSON, the manager sends what the
// Secret holds, and the agent stores it. Package internal/provision/progress has the one form in which the answer comes
// back.
//
// Names that scripts, roles and other versions rely on call the whole a plan, from before Plan was a kind, and stay:
// the path, the Secret "<host>-host-plan" with its key, type and annotations, the right hosts/plan, status.plan of a
// Host and its reason PlanInvalid, and the agent's file plan.json. In the code they are instructions.
type HostInstructions struct {
	// Owner is what the instructions are for, for example "Cluster/prod", empty for nothing that Drover knows. A host goes
	// from one owner's instructions to another's only after it was cleaned.
	Owner string `json:"owner,omitempty"`
	// Files to write before the instructions run. At most 256.
	Files []HostFile `json:"files,omitempty"`
	// Instructions to run once. The first that fails is the last that runs. At most 128.
	Instructions []HostInstruction `json:"instructions,omitempty"`
	// Periodic instructions to run while the host has them, once all Instructions have succeeded. At most 128.
	Periodic []HostInstruction `json:"periodic,omitempty"`
	// Probes say whether the installed software works. At most 32.
	Probes []HostProbe `json:"probes,omitempty"`
	// Clean is what gives the host back: instructions to run once each when all of this is taken away, before the
	// files are removed. At most 128.
	Clean []HostInstruction `json:"clean,omitempty"`
}

// HostFile is a file that the agent writes or removes.
type HostFile struct {
	// Path is absolute. Folders that are missing are made, for root only.
	Path string `json:"path"`
	// Content of the file, base64 in JSON.
	Content []byte `json:"content,omitempty"`
	// Mode in octal, "0600" by default.
	Mode string `json:"mode,omitempty"`
	// UID and GID of its owner, 0 by default.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`
	// Absent removes the file.
	Absent bool `json:"absent,omitempty"`
}

// Variables of instructions.
const (
	// EnvHostAgent is the path of the host agent's program, which each instruction has. Agents before this variable do not
	// set it.
	EnvHostAgent = "DROVER_HOST_AGENT"
	// EnvS3AccessKey, EnvS3SecretKey and EnvS3CA are the credentials with which the agent's program reaches an
	// S3-compatible store, for instructions that do.
	EnvS3AccessKey = "DROVER_S3_ACCESS_KEY"
	EnvS3SecretKey = "DROVER_S3_SECRET_KEY"
	EnvS3CA        = "DROVER_S3_CA"
)

// Repeatable reports whether the instruction of this ID does no harm if it runs once more: it is a task that makes or
// copies a snapshot of etcd. A schedule makes them without end, so the journal of a host forgets ended ones
// and that it is not given any more.
func Repeatable(id string) bool {
	return strings.HasPrefix(id, HostTaskPrefix+"snapshot-") || strings.HasPrefix(id, HostTaskPrefix+"upload-")
}

// HostTaskPrefix precedes the ID of a machine's task in that of its instruction.
const HostTaskPrefix = "task-"

// Prefixes of the IDs of instructions that start and stop a service. A host ends the start of a service when its next
// instructions begin by stopping it: a service that does not come up is waited for much longer than it takes to
// stop it.
const (
	HostStartPrefix = "start-"
	HostStopPrefix  = "stop-"
)

// HostInstruction is a command.
type HostInstruction struct {
	// ID of the instruction, 1 to 63 letters, digits, dots and hyphens. A one-time instruction runs once on a host,
	// however often it is given: what shall run again gets another ID.
	ID string `json:"id"`
	// Command and its arguments. No shell is added.
	Command []string `json:"command"`
	// Env is added to the agent's PATH and HOME. Its values are removed from what is reported.
	Env map[string]string `json:"env,omitempty"`
	// TimeoutSeconds after which the command is killed, 600 by default, at most a day.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// PeriodSeconds between two runs, 600 by default. For periodic instructions only.
	PeriodSeconds int `json:"periodSeconds,omitempty"`
}

// HostProbe is an HTTP GET that must return a 2xx status.
type HostProbe struct {
	// Name of the probe, of the same form as the ID of an instruction.
	Name string `json:"name"`
	// URL, http or https.
	URL string `json:"url"`
	// CAFile, CertFile and KeyFile are paths on the machine of the CA that must have signed the server's certificate, and
	// of the client's own.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// PeriodSeconds between two attempts, 10 by default.
	PeriodSeconds int `json:"periodSeconds,omitempty"`
	// TimeoutSeconds of one attempt, 5 by default.
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`
	// FailureThreshold is how many attempts in a row must fail, 3 by default.
	FailureThreshold int `json:"failureThreshold,omitempty"`
}

// hostName is the form of the IDs and names in instructions. It has no slash and does not begin with a dot: an ID is
// the name of a folder.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`) // without the length: a bound on a repetition makes it large, in each agent

const maxHostName = 63 // bytes

func validHostName(name string) bool { return len(name) <= maxHostName && hostName.MatchString(name) }

var hostMode = regexp.MustCompile(`^0?[0-7]{3}$`)

// ParseHostInstructions reads and checks instructions. Its error says what to change and holds no content, command or
// variable.
func ParseHostInstructions(raw []byte) (*HostInstructions, error) {
	if len(raw) > MaxHostInstructions {
		return nil, fmt.Errorf("the instructions have %d bytes, at most %d", len(raw), MaxHostInstructions)
	}
	parsed := &HostInstructions{}
	if err := untrusted.StrictJSON(raw, parsed, untrusted.Large().WithBytes(MaxHostInstructions)); err != nil {
		return nil, fmt.Errorf("the instructions are not the JSON of a host's: docs/spec/host.md has its fields") // the cause may quote content
	}
	return parsed, parsed.check()
}

func (p *HostInstructions) check() error {
	switch {
	case len(p.Owner) > maxHostText || printable(p.Owner, "") != p.Owner:
		return fmt.Errorf("the owner has more than %d bytes, or characters that are none of text", maxHostText)
	case len(p.Files) > maxHostFiles:
		return fmt.Errorf("the instructions have %d files, at most %d", len(p.Files), maxHostFiles)
	case len(p.Instructions) > maxHostInstructions, len(p.Periodic) > maxHostInstructions, len(p.Clean) > maxHostInstructions:
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
			return fmt.Errorf("instruction %d: the ID %s is there twice", i, instruction.ID)
		}
		seen[instruction.ID] = true
	}
	clear(seen)
	for i, probe := range p.Probes {
		if err := probe.check(); err != nil {
			return fmt.Errorf("probes[%d]: %w", i, err)
		}
		if seen[probe.Name] {
			return fmt.Errorf("probes[%d]: the name %s is there twice", i, probe.Name)
		}
		seen[probe.Name] = true
	}
	return nil
}

func (f HostFile) check() error {
	switch {
	case len(f.Path) > maxHostPath || !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.ContainsRune(f.Path, 0):
		return fmt.Errorf("the path must be absolute, without \"..\" and slash at its end")
	case f.Mode != "" && !hostMode.MatchString(f.Mode):
		return fmt.Errorf("the mode must be octal, like 0600")
	case f.UID < 0 || f.GID < 0:
		return fmt.Errorf("uid and gid must not be negative")
	case f.Absent && len(f.Content) > 0:
		return fmt.Errorf("a file that is absent has no content")
	}
	return nil
}

func (i HostInstruction) check() error {
	switch {
	case !validHostName(i.ID):
		return fmt.Errorf("the ID must have 1 to 63 letters, digits, dots and hyphens")
	case len(i.Command) == 0 || i.Command[0] == "" || len(i.Command) > maxHostCommand || len(i.Env) > maxHostCommand:
		return fmt.Errorf("%s: a command of 1 to %d words is required, with at most as many variables", i.ID, maxHostCommand)
	case i.TimeoutSeconds < 0 || i.TimeoutSeconds > maxHostTimeout || i.PeriodSeconds < 0 || i.PeriodSeconds > maxHostTimeout:
		return fmt.Errorf("%s: times must be 0 to %d seconds", i.ID, maxHostTimeout)
	}
	for name := range i.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("%s: a variable has no valid name", i.ID)
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
	case p.PeriodSeconds < 0 || p.PeriodSeconds > maxHostTimeout || p.TimeoutSeconds < 0 || p.TimeoutSeconds > maxHostTimeout || p.FailureThreshold < 0 || p.FailureThreshold > 1000:
		return fmt.Errorf("%s: a time or threshold is out of its range", p.Name)
	}
	return nil
}

// Timeout of one run.
func (i HostInstruction) Timeout() time.Duration {
	return seconds(i.TimeoutSeconds, DefaultInstructionTimeout)
}

// Period between two runs.
func (i HostInstruction) Period() time.Duration { return seconds(i.PeriodSeconds, DefaultPeriod) }

// Digest identifies what an instruction does. It depends on nothing beside it.
func (i HostInstruction) Digest() string { return digestOf(i) }

// Timeout of one attempt.
func (p HostProbe) Timeout() time.Duration { return seconds(p.TimeoutSeconds, DefaultProbeTimeout) }

// Period between two attempts.
func (p HostProbe) Period() time.Duration { return seconds(p.PeriodSeconds, DefaultProbePeriod) }

// Digest identifies the content of instructions.
func (p *HostInstructions) Digest() string { return digestOf(p) }

func seconds(n, otherwise int) time.Duration {
	if n == 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

func digestOf(value any) string {
	raw, err := json.Marshal(value)
	if err != nil { // strings, numbers and bytes always marshal
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
