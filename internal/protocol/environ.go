// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"regexp"
	"sync"
)

// AgentVariables is the part of an error message that lists the variables that a Cluster may add to its agent's
// environment.
const AgentVariables = "use HTTPS_PROXY, HTTP_PROXY, NO_PROXY, GOMEMLIMIT, GOGC, GOMAXPROCS, " +
	"or a variable of OpenTelemetry that names no file"

// agentVariable matches the allowed variables. The validation rule for spec.agent.env in api/v1 contains the same
// expression, and a test compares the two. The OpenTelemetry variables configure where spans are sent, which
// attributes they have and how they are batched. Variables that name files are not allowed, because an agent's pod
// has no files for them, and a file such as /proc/self/environ may have any content.
var agentVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(HTTPS_PROXY|https_proxy|HTTP_PROXY|http_proxy|` +
		`NO_PROXY|no_proxy|GOMEMLIMIT|GOGC|GOMAXPROCS|` +
		`OTEL_(EXPORTER_OTLP_(TRACES_)?(ENDPOINT|HEADERS)|SERVICE_NAME|RESOURCE_ATTRIBUTES|SDK_DISABLED|BSP_[A-Z_]+))$`)
})

// AgentVariable reports whether a Cluster may add a variable to its agent's environment. Any other variable could
// change which server the agent accepts as the hub or as its API server, or make the agent log secrets. Either effect
// could expose the agent's rights.
func AgentVariable(name string) bool { return agentVariable().MatchString(name) }
