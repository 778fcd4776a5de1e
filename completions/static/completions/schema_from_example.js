// A JSON Schema that an example matches: each object has exactly the properties of the example, and the elements of an
// array have what all of them have.

export function schemaOf(value) {
  if (value === null) return { type: "null" };
  if (Array.isArray(value)) return { type: "array", ...(value.length ? { items: value.map(schemaOf).reduce(join) } : {}) };
  if (typeof value === "object") {
    const properties = Object.fromEntries(Object.entries(value).map(([name, each]) => [name, schemaOf(each)]));
    return { type: "object", properties, required: Object.keys(properties), additionalProperties: false };
  }
  if (typeof value === "number") return { type: Number.isInteger(value) ? "integer" : "number" };
  return { type: typeof value };
}

const NUMBERS = ["integer", "number"];

// The schema of what either schema accepts, for schemas of examples.
function join(one, other) {
  if (one.anyOf || other.anyOf) {
    const all = [...(one.anyOf ?? [one]), ...(other.anyOf ?? [other])];
    const kinds = all.reduce((known, each) => {
      const at = known.findIndex((schema) => !join(schema, each).anyOf);
      return at < 0 ? [...known, each] : known.with(at, join(known[at], each));
    }, []);
    return kinds.length > 1 ? { anyOf: kinds } : kinds[0];
  }
  if (one.type !== other.type) {
    const isNumber = NUMBERS.includes(one.type) && NUMBERS.includes(other.type);
    return isNumber ? { type: "number" } : { anyOf: [one, other] };
  }
  if (one.type === "array") return one.items && other.items ? { ...one, items: join(one.items, other.items) } : one.items ? one : other;
  if (one.type !== "object") return one;
  const properties = { ...one.properties };
  for (const [name, each] of Object.entries(other.properties)) {
    properties[name] = Object.hasOwn(properties, name) ? join(properties[name], each) : each;
  }
  return { ...one, properties, required: one.required.filter((name) => other.required.includes(name)) };
}
