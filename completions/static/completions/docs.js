// Swagger UI on /docs. The API key stays in the memory of the page: a reload forgets it.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
localStorage.removeItem("authorized"); // where earlier versions kept it

SwaggerUIBundle({ url: "/v1/openapi.json", dom_id: "#docs", deepLinking: true });
